"""End all that a plugin started, wherever it went: a process between the server and the plugin's.

    server ── reaper ── the plugin's process ── whatever it starts

Like a command's supervisor (tools/workspace/supervisor.py) it adopts every orphan below it, and ends last.
"""

import os
import resource
import signal
import socket
import time

from toolgate.tools.workspace import supervisor
from toolgate.tools.workspace.supervisor import IGNORED_SIGNALS, Supervisor


class PluginReaper(Supervisor):
    """A supervisor whose tree also ends with its first process; `code` is that one's exit code."""

    code = 0

    def say(self, line: str) -> bool:
        word, *rest = line.split()
        if word == "exited":
            self.code = int(rest[0])
            self.abandoned = self.deadline = time.monotonic()
        return True


def fork_under_reaper(line: socket.socket, channel: socket.socket) -> None:
    """Return in a child, and end as it ends once nothing that it started is left: at the latest when the server closes
    its end of `line`, on which nothing is said. `channel` is the child's.

    To be called before there are threads.
    """
    deaf = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED_SIGNALS}
    supervisor.become_subreaper()
    child = os.fork()
    if child == 0:
        line.close()
        for number, before in deaf.items():
            signal.signal(number, before)
        os.setsid()
        return
    channel.close()  # that the server sees the end of it when the child closes it
    wake, _ = supervisor.wake_on_child()
    guard = PluginReaper(line, -1, wake)
    guard.shell = child
    guard.watch()
    _exit_like(guard.code)


def _exit_like(code: int) -> None:
    """Exit as the child did, without another core dump."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
