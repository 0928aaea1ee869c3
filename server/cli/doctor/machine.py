"""Check Python, the clock, disk space, memory, open files and namespaces."""

import asyncio
import os
import resource
import sys
import time
from pathlib import Path

from toolgate.server.base.text import format_size
from toolgate.server.cli.doctor.report import CheckError, CheckFinding, CheckNote
from toolgate.server.config.load import Config
from toolgate.server.workspaces.free_space import measure_free_memory

OLDEST = 1_767_225_600.0  # 2026-01-01: an earlier clock was never set, and invalidates certificates and tokens
DRIFT = 300.0  # seconds the files of the state may be newer than the clock
DISK_FULL, DISK_LOW = (64 * 2**20, 2**30)  # bytes free
INODES_FULL, INODES_LOW = 1_000, 10_000  # free inodes: a project takes thousands
MEMORY_FULL, MEMORY_LOW = 64 * 2**20, 512 * 2**20  # bytes: a server has some 80 MiB, a browser several hundred
DESCRIPTORS_FULL, DESCRIPTORS_LOW = 256, 4_096  # descriptors: a stream takes one, and a command several
SYSCTLS = Path("/proc/sys")
# Settings that keep users other than root from making namespaces: file, its value then, the value that allows it.
NAMESPACE_SYSCTLS = {
    "kernel/unprivileged_userns_clone": ("0", "1"),
    "kernel/apparmor_restrict_unprivileged_userns": ("1", "0"),
    "user/max_user_namespaces": ("0", "15000"),
}


async def disk(config: Config) -> CheckFinding:
    """Check the free space of each disk with files of ours."""
    folders = {config.state: "--state", config.workspace: "--workspace", config.logs: "--logs"}
    seen: dict[int, tuple[Path, os.statvfs_result, str]] = {}
    for folder, option in folders.items():
        if folder is not None:
            above = next(each for each in (folder, *folder.parents) if each.exists())
            seen.setdefault(above.stat().st_dev, (folder, await asyncio.to_thread(os.statvfs, above), option))
    found = [_judge_disk(*disk) for disk in seen.values()]
    notes = [each for each in found if isinstance(each, CheckNote)]
    return notes[0] if notes else "; ".join(map(str, found))


def _judge_disk(folder: Path, space: os.statvfs_result, option: str) -> CheckFinding:
    free, files = space.f_bavail * space.f_frsize, space.f_favail
    is_counted = space.f_files > 0  # some file systems have no fixed number
    told = f"{folder} has {format_size(free)} free" + (f", and room for {files:,} files" if is_counted else "")
    remedy = f"free some space there, or name another folder with {option}"
    if free < DISK_FULL or (is_counted and files < INODES_FULL):
        raise CheckError(f"the disk is full: {told}", f"{remedy}: writes fail or are lost")
    if free < DISK_LOW or (is_counted and files < INODES_LOW):
        return CheckNote(f"the disk is nearly full: {told}", remedy)
    return told


async def memory(_config: Config) -> CheckFinding:
    """Check the free memory of the machine, or of this process's control group if it has less."""
    free = await asyncio.to_thread(measure_free_memory)
    if free is None:
        return "not reported by this system"
    left = f"{format_size(free)} left"
    if free < MEMORY_FULL:
        raise CheckError(left, "stop what uses it, or add memory to this machine or container")
    if free < MEMORY_LOW:
        return CheckNote(left, "a browser takes 300 MiB: use --browser none, or add memory")
    return left


async def open_files(config: Config) -> CheckFinding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if config.is_remote else soft  # over HTTP the server raises its own limit
    if most == resource.RLIM_INFINITY:
        return "unlimited"
    remedy = "raise it: ulimit -n 65536, or LimitNOFILE=65536 in the unit"
    if most < DESCRIPTORS_FULL:
        raise CheckError(f"a process may open {most:,}", remedy)
    if config.is_remote and most < DESCRIPTORS_LOW:
        return CheckNote(f"{most:,}, and each client takes one", remedy)
    return f"{most:,}"


def find_namespace_remedy() -> str | None:
    """Return the remedy if the kernel lets only root make user namespaces, else None."""
    if os.geteuid() == 0:
        return None
    for name, (refusing, wanted) in NAMESPACE_SYSCTLS.items():
        if _read_text(SYSCTLS / name).strip() == refusing:
            return f"as root: sysctl -w {name.replace('/', '.')}={wanted}"
    return None


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


async def python(_config: Config) -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.platform not in ("linux", "darwin"):
        raise CheckError(f"{sys.platform} is not supported", "use Linux, macOS, or WSL on Windows")
    return f"{version} on {sys.platform}"


async def clock(config: Config) -> str:
    now = time.time()
    told = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < OLDEST:
        raise CheckError(f"it says {told}", "set the clock: tokens and certificates go by it")
    database = config.state / "state.db"
    if database.exists() and database.stat().st_mtime > now + DRIFT:
        raise CheckError(f"it says {told}, and the state database is newer", "set the clock: tokens go by it")
    return told
