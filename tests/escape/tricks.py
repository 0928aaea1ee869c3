"""Functions of hostile scripts, and the program that runs many scripts in one command, each in its own process.

It goes into the sandbox as text, so it uses the standard library only. Its standard input is [[name, script, bash?],
…]; the outputs go into the file $VERDICTS, as an object by name."""
# ruff: noqa: F401

import contextlib
import ctypes
import errno
import fcntl
import glob
import json
import os
import platform
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
NUMBERS = {  # of system calls: x86-64, and arm64 where it has them
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "setns": (308, 268),
    "unshare": (272, 97),
    "fsopen": (430, 430),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "mount_setattr": (442, 442),
    "clone3": (435, 435),
    "clone": (56, 220),
    "add_key": (248, 217),
    "keyctl": (250, 219),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "fanotify_init": (300, 262),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "clock_settime": (227, 112),
    "settimeofday": (164, 170),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "swapon": (167, 224),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "reboot": (169, 142),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "modify_ldt": (154, None),
    "memfd_secret": (447, 447),
    "mq_open": (240, 180),
    "mq_timedreceive": (243, 183),
    "mq_unlink": (241, 181),
}
REFUSALS = (errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT)
LATEST = 12.0  # seconds that a script gets
MOST = 3000  # characters of what it says
ABSENT = "ABSENT"
E = os.environ


def escaped(*how: object) -> None:
    print(os.environ["ESCAPED"], *how, flush=True)


def system_call(name: str, *arguments: Any) -> int:
    """Return the call's result. Raises OSError."""
    number = NUMBERS[name][0 if X86 else 1]
    if number is None:
        raise OSError(errno.ENOSYS, name)
    given = libc.syscall(number, *arguments)
    if given < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return int(given)


def taken(name: str, *arguments: Any) -> None:
    """Report an escape if the kernel examines the arguments, which are nonsense."""
    try:
        system_call(name, *arguments)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            print(ABSENT, error)
            return
        if error.errno in REFUSALS:
            print("refused:", error)
            return
        escaped(error)
        return
    escaped(name)


def says(path: str) -> None:
    """Print the beginning of a file: a secret one holds the word."""
    with open(path, "rb") as file:
        print(file.read(2000).decode(errors="replace"))


def writable(path: str) -> None:
    """Open it for writing, and write nothing."""
    if not os.path.lexists(path) and os.path.isdir(os.path.dirname(path)):
        print(ABSENT, path)
        return
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY))
    escaped(path)


def first(path: str, *more: str) -> str:
    return next((each for each in (path, *more) if os.path.exists(each)), path)


def hears(where: Any, family: int = socket.AF_UNIX, say: bytes = b"\n") -> None:
    """Print what the listener there sends."""
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(3)
        connection.connect(where)
        with contextlib.suppress(OSError):  # it may have sent its word and closed already
            connection.sendall(say)
        print(connection.recv(2000).decode(errors="replace"))


def proxied(target: str, method: str = "GET") -> None:
    """Print the proxy's answer; without a proxy, the target's."""
    with socket.socket() as connection:
        connection.settimeout(8)
        connection.connect(("127.0.0.1", 3128))
        connection.sendall(f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        if method == "CONNECT":
            head = connection.recv(2000)
            print(head.decode(errors="replace"))
            if b" 200" in head.split(b"\r\n")[0]:
                escaped("a tunnel")
            return
        answer = b""
        while piece := connection.recv(2000):
            answer += piece
        print(answer.decode(errors="replace"))
        if answer[:12].endswith((b" 200", b" 301", b" 302", b" 404", b" 401")):
            escaped("it is there")


def others() -> list[int]:
    """Return all processes outside this script, the highest first."""
    mine = {os.getpid(), os.getppid()}
    return [pid for pid in sorted(map(int, filter(str.isdigit, os.listdir("/proc"))), reverse=True) if pid not in mine]


def above() -> list[int]:
    """Return the processes above this script's command, its supervisor and zygote, without the first process."""
    found: list[int] = []
    pid = os.getppid()
    while pid > 0:
        with open(f"/proc/{pid}/stat") as file:
            name, _, rest = file.read().rpartition(")")
        if "python" in name or "bwrap" in name or "toolgate" in name:
            found.append(pid)
        pid = int(rest.split()[1])
    return [pid for pid in found[2:] if pid != 1]  # the nearest two run this script


def attempt(script: str, bash: bool) -> None:
    if bash:
        os.execvp("bash", ["bash", "-c", script])
    try:
        exec(compile(script, "attempt", "exec"), globals())
    except OSError as error:
        print("refused:", error)
    except (ValueError, MemoryError) as error:
        print("nothing:", error)
    except BaseException as error:
        print("BROKEN", type(error).__name__, error)
    sys.stdout.flush()
    os._exit(0)


def run(script: str, bash: bool) -> str:
    """Return its output, until its first process ends or its time is up."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        os.close(reader)
        os.close(writer)
        os.setpgid(0, 0)
        attempt(script, bash)
    os.close(writer)
    said, until = b"", time.monotonic() + LATEST
    while (left := until - time.monotonic()) > 0:
        if not select.select([reader], [], [], left)[0]:
            break
        piece = os.read(reader, 65536)
        if not piece:
            break
        said += piece[: MOST * 4]
    os.close(reader)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    ending = "" if not os.WIFSIGNALED(status) else f"\n(signal {os.WTERMSIG(status)})"
    return said.decode(errors="replace")[:MOST] + ending


def main() -> None:
    """Run four scripts at once."""
    waiting = json.load(sys.stdin)
    verdicts: dict[str, str] = {}
    shares = [waiting[number::4] for number in range(4)]
    ends = []
    for share in shares:
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(reader)
            with os.fdopen(writer, "w") as file:
                json.dump({name: run(script, bash) for name, script, bash in share}, file)
            os._exit(0)
        os.close(writer)
        ends.append(reader)
    for reader in ends:
        with os.fdopen(reader) as file:
            verdicts |= json.loads(file.read() or "{}")
    fresh = os.environ["VERDICTS"] + ".new"
    with open(fresh, "w") as file:
        json.dump(verdicts, file)
    os.rename(fresh, os.environ["VERDICTS"])


if __name__ == "__main__":
    main()
