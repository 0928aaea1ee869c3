"""Run one program of an image as a container engine would: as one user, without capabilities, in namespaces, with a
read-only root, under a system call filter. As root.

A program, run as `python -I -S runtime.py` with a `Container` as JSON on its standard input. Its exit code is the
container's; SIGTERM is passed on. Standard library only. Unlike an engine it has no network of its own, control groups
or AppArmor."""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

CLONE_NEWUSER = 0x1000_0000
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID = 0x0002_0000, 0x0400_0000, 0x0800_0000, 0x2000_0000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    1,
    2,
    4,
    8,
    32,
    4096,
    16384,
    1 << 18,
)
MNT_DETACH = 2
PR_CAPBSET_DROP, PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 24, 1, 22, 38, 47
PR_SET_KEEPCAPS = 8
SECCOMP_MODE_FILTER, PR_CAP_AMBIENT_RAISE = 2, 2
CAPABILITY_VERSION_3 = 0x2008_0522
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
MASKED = ("acpi", "kcore", "keys", "latency_stats", "timer_list", "sched_debug", "scsi")  # of /proc, as engines do
READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
NUMBERS = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "KILL": 5, "SETGID": 6, "SETUID": 7, "SETPCAP": 8}

libc = ctypes.CDLL(None, use_errno=True)


class Program(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def main() -> int:
    told = json.load(sys.stdin)
    if told["pod"]:
        own_users()
    call("unshare", CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID)
    first = os.fork()
    if first == 0:
        try:
            begin(told)
        except Exception as error:  # the caller reads the reason
            os.write(2, f"runtime: {type(error).__name__}: {error}\n".encode())
            os._exit(125)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: os.kill(first, number))
    _, status = os.waitpid(first, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def own_users() -> None:
    """Enter a user namespace, as a pod may have. Users have the same ids as outside, but no rights there."""
    ready, told = os.pipe()
    helper = os.fork()
    if helper == 0:  # outside: a process inside may write only one line
        os.read(ready, 1)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{os.getppid()}/{name}").write_text("0 0 65536")
        os._exit(0)
    call("unshare", CLONE_NEWUSER)
    os.write(told, b".")
    if os.waitpid(helper, 0)[1] != 0:
        raise OSError("no user namespace")


def begin(told: dict[str, Any]) -> NoReturn:
    """Turn the container's first process into its program."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.setsid()
    furnish(told)
    os.chdir(told["workdir"])
    os.umask(0o022)
    become(told["user"], [NUMBERS[name] for name in told["capabilities"]])
    if told["filter"]:
        load(bytes.fromhex(told["filter"]))
    os.execvpe(told["command"][0], told["command"], told["environment"])


def furnish(told: dict[str, Any]) -> None:
    """Set up the image's read-only root. `writable` are pairs of a machine's folder and a path, `memory` paths for
    tmpfs; `lent` are the machine's own folders, `layers` overlays by path."""
    root = Path(told["root"])
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount(str(root), str(root), None, MS_BIND | MS_REC)
    mount("proc", str(root / "proc"), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("tmpfs", str(root / "dev"), "tmpfs", MS_NOSUID, "mode=755,size=65536k")
    for name in DEVICES:
        (root / "dev" / name).touch()
        mount(f"/dev/{name}", str(root / "dev" / name), None, MS_BIND)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (root / "dev" / name).symlink_to(target)
    (root / "dev" / "shm").mkdir()
    for path in ("/dev/shm", *told["memory"]):
        mount("tmpfs", f"{root}{path}", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    for outside, inside in told["writable"]:
        mount(outside, f"{root}{inside}", None, MS_BIND)
    for path in told["lent"]:
        mount(path, f"{root}{path}", None, MS_BIND)
        mount(None, f"{root}{path}", None, MS_REMOUNT | MS_BIND | MS_RDONLY)
    for path, folders in told["layers"].items():
        mount("overlay", f"{root}{path}", "overlay", MS_RDONLY, f"lowerdir={folders}")
    mount(None, str(root), None, MS_REMOUNT | MS_BIND | MS_RDONLY)
    if told["masked"]:
        mask(root / "proc")
    os.chdir(root)
    if libc.syscall(PIVOT_ROOT, b".", b".") != 0:
        raise OSError(ctypes.get_errno(), "pivot_root")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def mask(proc: Path) -> None:
    for name in MASKED:
        if (proc / name).is_dir():
            mount("tmpfs", str(proc / name), "tmpfs", MS_RDONLY)
        elif (proc / name).exists():
            mount("/dev/null", str(proc / name), None, MS_BIND)
    for name in filter(lambda name: (proc / name).exists(), READ_ONLY):
        mount(str(proc / name), str(proc / name), None, MS_BIND | MS_REC)
        mount(None, str(proc / name), None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)


def become(user: int, capabilities: list[int]) -> None:
    """Become `user` with exactly these capabilities, and no way to gain others."""
    for number in range(64):
        if number not in capabilities:
            libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    bits = sum(1 << number for number in capabilities) if user == 0 else 0
    header = ctypes.create_string_buffer(CAPABILITY_VERSION_3.to_bytes(4, "little") + bytes(4), 8)
    data = ctypes.create_string_buffer(bits.to_bytes(4, "little") * 2 + bytes(16), 24)
    call("capset", header, data)
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def load(program: bytes) -> None:
    held = Program(len(program) // 8, program)
    call("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(held), 0, 0)


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, data)]
    try:
        call("mount", words[0], words[1], words[2], ctypes.c_ulong(flags), words[3])
    except OSError as error:
        raise OSError(error.errno, f"mount {source} at {target}: {error.strerror}") from None


def call(name: str, *arguments: Any) -> None:
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]

if __name__ == "__main__":
    sys.exit(main())
