"""Fork the processes of plugins from one that has imported the plugin API, so that they share its memory. Linux only.

A program: `python -m toolgate.server.plugins.isolation.fork_server SOCKET PADDING`. Each message on SOCKET is a
`ForkRequest` with the two descriptors of a plugin's process, and is answered with the process's id. The server is the
parent of that process, too: it waits for it as for one that it has started itself. A process keeps no other descriptor
of this program. PADDING is the room for the command line by which people see which plugin a process serves.
"""

import ctypes
import gc
import os
import platform
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import msgspec

from toolgate.server.plugins.isolation import worker

MAX_REQUEST = 2**16  # bytes
CLONE_PARENT = 0x00008000  # linux/sched.h: the child of the caller's parent
SYS_CLONE = {"x86_64": 56, "aarch64": 220}  # asm/unistd.h
ARGUMENTS = slice(45, 47)  # arg_start and arg_end among the fields after the name: proc(5), stat


class ForkRequest(msgspec.Struct):
    file: str
    logged: Sequence[str]


def is_supported() -> bool:
    return sys.platform == "linux" and platform.machine() in SYS_CLONE


def fork_sibling() -> int:
    """Fork as `os.fork` does, with this process's parent as the parent of the new one. Raises OSError.

    The new process may call `os.fork`, but start no thread: the C library has not taken note of its id.
    """
    python, libc = ctypes.pythonapi, ctypes.PyDLL(None, use_errno=True)  # PyDLL: with the interpreter's lock
    python.PyOS_BeforeFork()
    pid: int = libc.syscall(SYS_CLONE[platform.machine()], CLONE_PARENT | int(signal.SIGCHLD), 0, 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    error = ctypes.get_errno()
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(error, os.strerror(error))
    return pid


def show_command(words: Sequence[str]) -> None:
    """Replace what `ps` shows as this process's command line, as far as there is room."""
    try:
        begin, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[ARGUMENTS])
        line = b"\0".join(map(os.fsencode, words))[: end - begin - 1]
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(begin)
            memory.write(line.ljust(end - begin, b"\0"))
    except (OSError, ValueError):
        pass  # people see this program's line


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    worker.prepare()
    gc.collect()
    gc.freeze()  # a collection in a child would copy all pages
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, MAX_REQUEST, 2)
        if not data:
            return
        request = msgspec.msgpack.decode(data, type=ForkRequest)
        try:
            pid = fork_sibling()
        except OSError as error:
            pid = -(error.errno or 1)
        if pid == 0:
            channel.close()
            serve(request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(msgspec.msgpack.encode(pid))


def serve(request: ForkRequest, descriptors: Sequence[int]) -> None:
    """Serve the plugin as the program `worker`, and end."""
    try:
        os.setsid()
        words = [*map(str, descriptors), request.file, *request.logged]
        show_command([sys.executable, "-m", worker.__name__, *words])
        sys.argv[1:] = words
        worker.main()
    except BaseException:  # noqa: BLE001  # it must not go on as the fork server
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
