"""End a plugin's process with the server, and what the plugin started with its process."""

import contextlib
import os
import resource
import select
import signal
import socket
import sys
import time
from pathlib import Path

from toolgate.tools.workspace.processes import process_tree, supervisor
from toolgate.tools.workspace.processes.supervisor import IGNORED_SIGNALS, Supervisor

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def watch_server(source: int) -> None:
    """End this process and all it started when the server has closed the stream. Runs in a thread."""
    ends = select.poll()
    ends.register(source, getattr(select, "POLLRDHUP", 0) | select.POLLHUP)
    while not ends.poll():
        pass
    kill_group()


def kill_group() -> None:
    with contextlib.suppress(OSError):
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
    os._exit(0)


def die_with_server() -> None:
    """End with the server even if no Python runs any more, and be killed first if memory is short (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if sys.platform == "linux":
        import ctypes  # start-up: the only way

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class PluginReaper(Supervisor):
    """A supervisor that ends with its first process, and kills the rest; `code` is that process's exit code."""

    code = 0

    def say(self, line: str) -> bool:
        word, *rest = line.split()
        if word == "exited":
            self.code = int(rest[0])
            self.abandoned = self.deadline = time.monotonic()
        return True


def fork_under_reaper(line: socket.socket) -> None:
    """Return in a child. The parent ends like it once nothing that it started is left, at the latest when the server
    closes its end of `line`, which carries no data. The standard streams are the child's.

    Call it before there are threads.
    """
    deaf = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED_SIGNALS}
    process_tree.become_subreaper()
    child = os.fork()
    if child == 0:
        line.close()
        for number, before in deaf.items():
            signal.signal(number, before)
        os.setsid()
        return
    _close_streams()
    wake, _ = supervisor.wake_on_child()
    guard = PluginReaper(line, wake)
    guard.shell = child
    guard.watch()
    _exit_like(guard.code)


def _close_streams() -> None:
    """Give up standard input and output, so that the server sees their end when the child closes them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    os.close(nothing)


def _exit_like(code: int) -> None:
    """Exit like the child, without a second core dump."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
