"""Enter a principal's sandbox, drop every privilege, and become the zygote of its commands.

A program, run as `python -I -S enter.py STAGE FD`, FD being a file with that dict:

    outside     joins control groups, then runs bwrap with `inside`; without bwrap it goes on as that itself
    inside      changes user, makes a user namespace, drops capabilities, loads the system call filter, then says
                `ready` and is the zygote that supervisor.py describes

    report      unix socket; also the standard error until `ready`: what is written there is why it did not work. With
                `ready` comes the listening socket of the proxy, where there is one
    channel     the zygote's
    groups      files to write our process id into
    bwrap       its path and arguments; empty without it
    uid         the user and the group to become; -1: stay as it is
    namespace   whether to make a user namespace here (as root bwrap makes none that is worth having)
    mark        a capability that all keeps which runs here; -1: none. Processes of the same user that lack it may not
                read the memory and the environment of those that have it (ptrace(2), "access mode checking")
    port        of the proxy on this loopback; 0: none
    filter      the program for seccomp; empty where bwrap has loaded it, in its own process too
    limits      resource limits for all that runs here: [(number, value)]
    supervisor  the path of supervisor.py
    python      the interpreter, and this file: as they are called inside

Standard library only, and little of it: the first command waits for this.
"""

import ctypes
import importlib.util
import marshal
import os
import resource
import socket
import struct
import sys
from typing import Any

PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = (
    4,
    8,
    22,
    24,
    38,
)  # linux/prctl.h
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, PR_CAP_AMBIENT_CLEAR_ALL = 47, 2, 4
SECCOMP_MODE_FILTER = 2
CLONE_NEWUSER = 0x1000_0000
CAPABILITY_VERSION_3 = 0x2008_0522  # linux/capability.h
LAST_CAP = 63
NICE = 5  # the server and the rest of the machine come first

libc = ctypes.CDLL(None, use_errno=True)


class SockFprog(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def main() -> None:
    stage, fd = sys.argv[1], int(sys.argv[2])
    config: dict[str, Any] = marshal.loads(os.pread(fd, os.fstat(fd).st_size, 0))  # noqa: S302  # written by the server
    if stage == "outside":
        _run_outside(config, fd)
    os.close(fd)
    _run_inside(config)


def _run_outside(config: dict[str, Any], fd: int) -> None:
    """Run bwrap with `inside`; return if there is no bwrap."""
    for group in config["groups"]:
        with open(group, "wb") as file:
            file.write(b"%d" % os.getpid())
    os.nice(NICE)
    if config["bwrap"]:
        command = [*config["bwrap"], "--", *config["python"], "inside", str(fd)]
        os.execve(command[0], command, {})  # noqa: S606  # the arguments are a list


def _run_inside(config: dict[str, Any]) -> None:
    supervisor = _load_module(config["supervisor"])  # now: later its path may not be visible
    if config["uid"] >= 0:
        if config["mark"] >= 0:
            _prepare_mark(config["mark"])
        drop_bounding()  # now: who is not root may not
        os.setgroups([])
        os.setresgid(config["uid"], config["uid"], config["uid"])
        os.setresuid(config["uid"], config["uid"], config["uid"])
    if config["namespace"]:
        _enter_user_namespace(config["uid"])
    drop_capabilities(config["mark"])
    os.umask(0o022)
    os.chdir("/")
    for number, value in config["limits"]:
        resource.setrlimit(number, (value, value))
    listener = _open_listener(config["port"]) if config["port"] else None
    if config["filter"]:
        load_filter(config["filter"])
    _call_libc("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)  # commands run as the same user and must not read this process
    report = socket.socket(fileno=config["report"])
    socket.send_fds(report, [b"ready"], [listener.fileno()] if listener else [])
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 2)
    os.close(nothing)
    report.close()
    if listener is not None:
        listener.close()
    supervisor.serve(config["channel"])


def _enter_user_namespace(uid: int) -> None:
    """Make and enter a user namespace with this user alone."""
    _call_libc("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # else the maps belong to root
    _call_libc("unshare", CLONE_NEWUSER)
    for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{uid} {uid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)


def drop_bounding() -> None:
    """Drop every capability that an exec could give."""
    for capability in range(LAST_CAP):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # past the last one, or not permitted: without capabilities there is nothing to gain


def _prepare_mark(capability: int) -> None:
    """Have this capability outlast the change of the user. Raises OSError without it."""
    header, sets = struct.pack("Ii", CAPABILITY_VERSION_3, 0), ctypes.create_string_buffer(24)
    _call_libc("capget", header, sets)
    effective, permitted, inheritable, *higher = struct.unpack("6I", sets.raw)
    inheritable |= 1 << capability
    _call_libc("capset", header, struct.pack("6I", effective, permitted, inheritable, *higher))
    _call_libc("prctl", PR_SET_KEEPCAPS, 1, 0, 0, 0)


def drop_capabilities(mark: int = -1) -> None:
    """Drop all capabilities but the `mark`, which programs then get too, and the ways to gain any."""
    drop_bounding()
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header, kept = struct.pack("Ii", CAPABILITY_VERSION_3, 0), 0 if mark < 0 else 1 << mark
    _call_libc("capset", header, struct.pack("6I", kept, kept, kept, 0, 0, 0))
    if kept:
        _call_libc("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, mark, 0, 0)
    _call_libc("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def load_filter(program: bytes) -> None:
    loaded = SockFprog(len(program) // 8, program)
    _call_libc("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(loaded), 0, 0)


def _open_listener(port: int) -> socket.socket:
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    listener.setblocking(False)
    return listener


def _load_module(path: str) -> Any:
    """Load supervisor.py, which can't be imported by name here."""
    spec = importlib.util.spec_from_file_location("supervisor", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _call_libc(name: str, *arguments: Any) -> None:
    """Call a function of libc that returns 0 on success. Raises OSError."""
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # noqa: BLE001  # the server reports it in one line
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
