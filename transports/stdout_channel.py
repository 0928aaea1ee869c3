"""Write messages to a client's pipe without blocking, and keep what the pipe does not take yet."""

import asyncio
import contextlib
import fcntl
import logging
import os
import stat
import sys
from itertools import accumulate
from typing import Any

from toolgate.server.protocol.messages import Notification, Outbound, encode, refuse_too_large

log = logging.getLogger("toolgate.stdio")

BATCH = 4 * 1024  # bytes of answers in one write: more, and client and server would wait for each other by turns
PIPE_SIZE = 2**20  # bytes asked for in each direction, the most without privileges; 64 KiB hold four tool lists
PAUSE_ABOVE = 4 * 2**20  # bytes of unread output that stop the reading of input
RESUME_BELOW = 2**20
UNREAD_ABOVE = 64 * 2**20  # bytes of unread output that turn a large answer into an error
LARGE = 64 * 1024  # bytes of one
DROPPABLE = frozenset(("notifications/progress", "notifications/message"))
MAX_FLUSH_TIME = 5.0  # seconds for a client to read the last answers: shorter than clients wait before they kill
EMPTY = memoryview(b"")  # the empty rest of a large answer would hold all of it


def widen_pipe(descriptor: int) -> None:
    """Let a pipe hold PIPE_SIZE bytes, if the system allows that: its two ends then wait less for each other."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # not a pipe, or the user's pipes are too large together
            if fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ) < PIPE_SIZE:
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_SIZE)


class StdoutChannel:
    """The channel to the client. It never blocks, and keeps what the pipe does not take yet."""

    can_ask = True

    def __init__(self, loop: asyncio.AbstractEventLoop, sink: int) -> None:
        self.is_broken = False
        self.unread_size = 0  # bytes not taken by the pipe
        self.taken_size = 0  # bytes taken by it, ever
        self.on_room: Any = None  # called when input may be read again
        self.on_break: Any = None
        self.waits_for_more = True  # other answers may come in this turn of the event loop
        self._loop = loop
        self._sink = sink
        self._lines: list[bytes] = []  # to be written, each without its line break
        self._rest = EMPTY  # of what the pipe took in part
        self._is_flush_due = False
        self._idle = asyncio.Event()
        self._idle.set()
        mode = os.fstat(sink).st_mode
        self._can_wait = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        if self._can_wait:  # a terminal is shared with other programs, a file never blocks
            os.set_blocking(sink, False)
            widen_pipe(sink)

    @property
    def is_full(self) -> bool:
        return self.unread_size > PAUSE_ABOVE

    def send(self, message: Outbound) -> None:
        if self.is_broken:
            return
        if self.is_full and isinstance(message, Notification) and message.method in DROPPABLE:
            return
        line = encode(message)
        if len(line) > LARGE and self.unread_size and self.unread_size + len(line) > UNREAD_ABOVE:
            line = encode(refuse_too_large(message))
        self._lines.append(line)
        self.unread_size += len(line) + 1
        if self._idle.is_set() and (self.unread_size >= BATCH or not self.waits_for_more):
            self.flush()
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self.flush)

    def pause(self) -> None:
        """Do nothing: a pipe can't be reconnected."""

    def flush(self) -> None:
        """Write what the pipe takes, and the rest when it has room."""
        self._is_flush_due = False
        while (self._rest or self._lines) and not self.is_broken:
            if not self._rest:
                self._rest = memoryview(self._take_lines())
            try:
                written = os.write(self._sink, self._rest)
            except BlockingIOError:
                self._wait()
                return
            except OSError as error:
                self._break(error)
                return
            self._advance(written)
            if self._rest and self._can_wait:  # the pipe is full
                self._wait()
                return
        if not self._idle.is_set():
            self._loop.remove_writer(self._sink)
            self._idle.set()

    async def drain(self, seconds: float) -> None:
        """Wait until all is written, while the client reads some of it every `seconds`, at most MAX_FLUSH_TIME."""
        self.flush()
        until = self._loop.time() + MAX_FLUSH_TIME
        taken = -1
        while not self._idle.is_set() and taken != self.taken_size and self._loop.time() < until:
            taken = self.taken_size
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._idle.wait()

    def _take_lines(self) -> bytes:
        """Return the answers for the next write: all, or some PIPE_SIZE bytes of them: joining copies them."""
        lines, self._lines = self._lines, []
        if self.unread_size > PIPE_SIZE:
            sizes = accumulate(map(len, lines))
            count = next((at for at, size in enumerate(sizes, 1) if size >= PIPE_SIZE), len(lines))
            lines, self._lines = lines[:count], lines[count:]
        lines.append(b"")
        return b"\n".join(lines)

    def _advance(self, written: int) -> None:
        self._rest = self._rest[written:] or EMPTY
        had_room = self.unread_size < RESUME_BELOW
        self.unread_size -= written
        self.taken_size += written
        if self.unread_size < RESUME_BELOW and not had_room and self.on_room is not None:
            self.on_room()

    def _wait(self) -> None:
        if self._idle.is_set():
            self._idle.clear()
            self._loop.add_writer(self._sink, self.flush)

    def _break(self, error: OSError) -> None:
        """Drop waiting and later output: the client has gone."""
        log.info("the client no longer reads: %s", error)
        self.is_broken = True
        self._lines.clear()
        self._rest = EMPTY
        self.unread_size = 0
        if not self._idle.is_set():
            self._loop.remove_writer(self._sink)
            self._idle.set()
        if self.on_break is not None:
            self.on_break()
