"""What the machine has: room on its disks, memory, open files, namespaces. Knows the kernel's files; knows nothing of
what it is needed for but how much of it.
"""

import asyncio
import os
import resource
from pathlib import Path

from toolgate.server.cli.doctor.report import CheckFailedError, CheckFinding, CheckNote
from toolgate.server.config.load import Config

DISK_FULL, DISK_LOW = (
    64 * 2**20,
    2**30,
)  # bytes free: below the first nothing is kept surely, below the second not for long
INODES_FULL, INODES_LOW = 1_000, 10_000  # that can still be made: a skill or a session takes some, a project thousands
MEMORY_FULL, MEMORY_LOW = 64 * 2**20, 512 * 2**20  # bytes: a server has some 80 MiB, a browser several hundred
DESCRIPTORS_FULL, DESCRIPTORS_LOW = 256, 4_096  # descriptors: a stream takes one, and a command several
MEMINFO = Path("/proc/meminfo")
OWN_CGROUP = Path("/proc/self/cgroup")
CGROUP_ROOT = Path("/sys/fs/cgroup")
SYSCTLS = Path("/proc/sys")
# Where users other than root can't make namespaces: the file, its value then, and the value that allows it.
NAMESPACE_SYSCTLS = {
    "kernel/unprivileged_userns_clone": ("0", "1"),
    "kernel/apparmor_restrict_unprivileged_userns": ("1", "0"),
    "user/max_user_namespaces": ("0", "15000"),
}


async def disk(config: Config) -> CheckFinding:
    """Where something is written: the folder, and what room it has."""
    folders = {config.state: "--state", config.workspace: "--workspace", config.logs: "--logs"}
    seen: dict[int, tuple[Path, os.statvfs_result, str]] = {}
    for folder, option in folders.items():
        if folder is not None:
            above = next(each for each in (folder, *folder.parents) if each.exists())
            seen.setdefault(above.stat().st_dev, (folder, await asyncio.to_thread(os.statvfs, above), option))
    told = [_judge_disk(folder, room, option) for folder, room, option in seen.values()]
    notes = [each for each in told if isinstance(each, CheckNote)]
    return notes[0] if notes else "; ".join(str(each) for each in told)


def _judge_disk(folder: Path, room: os.statvfs_result, option: str) -> CheckFinding:
    free, files = room.f_bavail * room.f_frsize, room.f_favail
    is_counted = room.f_files > 0  # some file systems make files as long as there is room
    told = f"{folder} has {format_size(free)} free" + (f" for {files:,} files" if is_counted else "")
    remedy = f"make room there, or name another place with {option}"
    if free < DISK_FULL or (is_counted and files < INODES_FULL):
        raise CheckFailedError(f"the disk is full: {told}", f"{remedy}: what can't be written is refused or lost")
    if free < DISK_LOW or (is_counted and files < INODES_LOW):
        return CheckNote(f"the disk is nearly full: {told}", remedy)
    return told


async def memory(_config: Config) -> CheckFinding:
    """What the kernel says is to be had, or less where a control group holds this process."""
    free = await asyncio.to_thread(_available_memory)
    if free is None:
        return "not told by this system"
    if free < MEMORY_FULL:
        raise CheckFailedError(
            f"{format_size(free)} are left", "end what takes it, or give this machine or container more"
        )
    if free < MEMORY_LOW:
        return CheckNote(
            f"{format_size(free)} are left", "a browser takes 300 MiB: --browser none does without; or give it more"
        )
    return f"{format_size(free)} are left"


def _available_memory() -> int | None:
    free = [held for held in (_available_on_machine(), _available_in_cgroup()) if held is not None]
    return min(free, default=None)


def _available_on_machine() -> int | None:
    for line in _read_text(MEMINFO).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _available_in_cgroup() -> int | None:
    """Of the memory of our control group, by either version; None where it has no limit."""
    own = {kind: path for _, kind, path in (row.split(":", 2) for row in _read_text(OWN_CGROUP).splitlines() if row)}
    v2, v1 = own.get("", "").lstrip("/"), own.get("memory", "").lstrip("/")
    for most, used in (
        (CGROUP_ROOT / v2 / "memory.max", CGROUP_ROOT / v2 / "memory.current"),
        (CGROUP_ROOT / "memory" / v1 / "memory.limit_in_bytes", CGROUP_ROOT / "memory" / v1 / "memory.usage_in_bytes"),
    ):
        limit, taken = _read_text(most).strip(), _read_text(used).strip()
        if limit.isdigit() and taken.isdigit() and int(limit) < 2**60:
            return max(0, int(limit) - int(taken))
    return None


async def open_files(config: Config) -> CheckFinding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if config.is_remote else soft  # over HTTP the server takes what it may
    if most == resource.RLIM_INFINITY:
        return "as many as there are"
    remedy = "raise it: ulimit -n 65536, or LimitNOFILE=65536 in the unit"
    if most < DESCRIPTORS_FULL:
        raise CheckFailedError(f"a process may have {most:,} open", remedy)
    return (
        f"{most:,}"
        if not config.is_remote or most >= DESCRIPTORS_LOW
        else CheckNote(f"{most:,}: as many clients at most", remedy)
    )


def find_namespace_remedy() -> str | None:
    """What to do where the kernel lets nobody but root make a user namespace; None where it does, or we are root."""
    if os.geteuid() == 0:
        return None
    for name, (refusing, wanted) in NAMESPACE_SYSCTLS.items():
        if _read_text(SYSCTLS / name).strip() == refusing:
            return f"as root: sysctl -w {name.replace('/', '.')}={wanted}"
    return None


def format_size(count: int) -> str:
    """Bytes, for people."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count / 1024:.0f} KiB"


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
