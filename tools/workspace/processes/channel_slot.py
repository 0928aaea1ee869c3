"""Take a supervisor's commands from the zygote's channel. Standard library only: supervisor.py loads this."""

import os
import select
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from toolgate.tools.workspace.processes import command_start, own_limits
else:  # as in supervisor.py, which has put this folder on the path
    import command_start
    import own_limits

REMOVING = b"removing"
NEEDS_NEW = b"-"  # the byte alone
MAX_DESCRIPTORS = 4  # of a command: its control socket and output, and maybe its input and a pipe of its stdout
START_NEXT = b"+"  # among the numbers of signals on the zygote's own pipe: no supervisor waits
MAX_OWN_CPU = 0.2  # seconds of a supervisor's own CPU time: the least CPU limit, 1 s, must not end it


class ChannelSlot:
    """A supervisor's slot at the zygote's channel. Until it leaves, the zygote starts no other to wait there.

    `original` is what the zygote began with: a command may change this process as soon as it is forked."""

    def __init__(
        self,
        channel: socket.socket,
        tell: int,
        relay: tuple[socket.socket, socket.socket],
        original: "own_limits.OwnLimits",
    ) -> None:
        self.channel = channel
        self.is_held = True
        self._tell = tell
        self._relay = relay  # the ends to read and to write commands that another supervisor hands on
        self._limits: list[bytes] = []  # of this process, for good
        self._original = original

    def wait_command(self, *, is_first: bool) -> list[int]:
        """Wait for a command. Return its control socket, output and maybe input and stdout: fewer at the end of the
        channel, out of descriptors, or before a command for which only a new process will do."""
        handed_on = descriptors = self.take_over() if is_first else []
        while not descriptors:
            flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
            data, descriptors, _, _ = socket.recv_fds(self.channel, 1, MAX_DESCRIPTORS, flags)
            if not descriptors and not (is_first and data == NEEDS_NEW):
                return []
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        if handed_on or self.is_unchanged():  # a changed zygote forks for what is handed on if it can't end yet
            return descriptors
        socket.send_fds(self._relay[1], [b"+"], descriptors)
        self.leave()
        return []

    def take_over(self) -> list[int]:
        """Return the descriptors of a command that another supervisor hands on, or none."""
        self._relay[0].setblocking(False)
        try:
            return socket.recv_fds(self._relay[0], 1, MAX_DESCRIPTORS)[1]
        except BlockingIOError:
            return []

    def is_unchanged(self) -> bool:
        """Return whether no command has changed the limits of this process."""
        return own_limits.read_own_limits() == self._original

    def leave(self) -> None:
        """Have the zygote start another supervisor."""
        self.is_held = False
        self.channel.close()
        try:
            os.write(self._tell, START_NEXT)
        except OSError:  # it was killed: the server starts another
            return

    def is_readable(self) -> bool:
        """Return whether another command waits, or the server is gone."""
        poller = select.poll()  # select(2) takes no descriptor above 1023, and a busy server has them
        poller.register(self.channel, select.POLLIN)
        return bool(poller.poll(0))

    def apply_limits(self, limits: list[bytes], root: bytes) -> None:
        """Apply the limits to this process: the command inherits them."""
        new = [each for each in limits if each not in self._limits]
        self._limits += new
        numbered = [each for each in new if each != REMOVING]
        if numbered:
            command_start.limit(numbered)
            limits_before, others = self._original
            lower = command_start.lower_limits(numbered, limits_before)
            self._original = {**limits_before, **lower}, others
        if REMOVING in new:
            command_start.only_remove(root)

    def is_free(self) -> bool:
        """Return whether the next command may start here too, if it has the same sender and limits."""
        return self.is_held and time.process_time() < MAX_OWN_CPU and self.is_unchanged()
