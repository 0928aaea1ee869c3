"""Serve one client over standard input and output: one JSON-RPC message per line, UTF-8.

Lines are handled concurrently. Unread output stops the reading of input (`PAUSE_ABOVE`), which bounds memory, and drops
progress and log messages. At the end of input, SIGTERM or SIGINT, running work gets the grace time. A stray `print`
goes to standard error.
Source: MCP basic/transports, "stdio".
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import select
import signal
import stat
import sys
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from toolgate.server.protocol import asyncio_tasks
from toolgate.server.protocol.dispatcher import Dispatcher
from toolgate.server.protocol.errors import InvalidRequest
from toolgate.server.protocol.messages import Failure, Notification, Outbound, encode, refuse_too_large
from toolgate.server.protocol.session import Session

log = logging.getLogger("toolgate.stdio")

CHUNK = 64 * 1024  # bytes per read; glibc maps and unmaps memory for each buffer of 128 KiB or more
LARGE_CHUNK = 256 * 1024  # bytes of the read after one that filled its buffer
PIPE_SIZE = 2**20  # bytes asked for in each direction, the most without privileges; 64 KiB hold four tool lists
BATCH = 4 * 1024  # bytes of answers in one write: more, and client and server would wait for each other by turns
MAX_STARTED = 64  # messages in one turn: what they answer fits into the limits of unread output
MAX_LINE = 32 * 2**20  # an 8 MiB payload in base64 and its envelope; a longer line is refused unread
PAUSE_ABOVE = 4 * 2**20  # bytes of unread output that stop the reading of input
MAX_IN_WORK = 64 * 2**20  # bytes of messages in progress that stop the reading of input: two of the largest
RESUME_BELOW = 2**20
UNREAD_ABOVE = 64 * 2**20  # bytes of unread output that turn a large answer into an error
LARGE = 64 * 1024  # bytes of one
DROPPABLE = frozenset(("notifications/progress", "notifications/message"))
STALL = 5.0  # seconds between checks of a client that reads nothing
FLUSH_TIME = 0.3  # seconds for the client to read the last answers
EMPTY = memoryview(b"")  # the empty rest of a large answer would hold all of it


def take_descriptors() -> tuple[int, int]:
    """Return the protocol's descriptors (input, output), moved away from 0 and 1. Descriptor 0 is then empty and
    descriptor 1 is standard error, for the server, plugins and children."""
    taken = os.dup(0), os.dup(1)  # not inheritable
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return taken


def widen_pipe(descriptor: int) -> None:
    """Let a pipe hold PIPE_SIZE bytes, if the system allows that: its two ends then wait less for each other."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # not a pipe, or the user's pipes are too large together
            if fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ) < PIPE_SIZE:
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_SIZE)


async def serve(
    dispatcher: Dispatcher, session: Session, source: int, sink: int, grace: float, ending: Callable[[], None]
) -> None:
    """Serve until the input ends or a signal arrives; then call `ending` and give running work `grace` seconds."""
    loop = asyncio.get_running_loop()
    output = StdoutChannel(loop, sink)
    session.channel = output
    connection = StdioConnection(loop, dispatcher, session, source, output)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, connection.end)
    connection.read()
    await connection.ended.wait()
    ending()
    await connection.finish(grace)
    await output.drain(FLUSH_TIME)


class StdoutChannel:
    """The channel to the client. It never blocks, and keeps what the pipe does not take yet."""

    can_ask = True

    def __init__(self, loop: asyncio.AbstractEventLoop, sink: int) -> None:
        self.is_broken = False
        self.unread_size = 0  # bytes not taken by the pipe
        self.taken_size = 0  # bytes taken by it, ever
        self.on_room: Any = None  # called when input may be read again
        self.on_break: Any = None
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
        if self.unread_size >= BATCH and self._idle.is_set():
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
        """Wait until all is written, at most `seconds`."""
        self.flush()
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


class StdioConnection:
    """Reads lines and runs a task for each; the tasks answer on `output`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dispatcher: Dispatcher,
        session: Session,
        source: int,
        output: StdoutChannel,
    ) -> None:
        self.ended = asyncio.Event()
        self._loop = loop
        self._dispatcher = dispatcher
        self._session = session
        self._source = source
        self._output = output
        self._tasks: dict[asyncio.Task[Any], int] = {}  # task → the size of its message
        self._size_in_work = 0  # bytes: the sum of those
        self._lines: deque[bytes] = deque()  # read but not started: the output was full
        self._part: list[bytes] = []  # the beginning of a line
        self._part_size = 0
        self._skipping = False  # inside a line that is too long
        self._chunk = CHUNK  # bytes of the next read
        self._reading = False
        self._at_end = False  # of the input
        self._work_due = False
        self._stalled: asyncio.TimerHandle | None = None
        self._file_reader: asyncio.Task[None] | None = None  # reads input that can't be polled
        widen_pipe(source)
        output.on_room = self.read
        output.on_break = self.end

    def read(self) -> None:
        """Continue with waiting lines, then with reading."""
        if self.ended.is_set():
            return
        if self._lines or self._at_end:
            self._start_tasks_soon()
        if self._reading or self._at_end:
            return
        self._reading = True
        try:
            self._loop.add_reader(self._source, self._readable)
        except PermissionError:  # a regular file or /dev/null can't be polled
            if self._file_reader is None or self._file_reader.done():
                self._file_reader = self._loop.create_task(self._read_file())

    def end(self) -> None:
        """Stop reading: the input ended, a signal arrived, or the client has gone."""
        self.ended.set()
        self._lines.clear()
        self._pause()
        if self._stalled is not None:
            self._stalled.cancel()

    async def finish(self, grace: float) -> None:
        """Wait at most `grace` seconds for running work, and cancel the rest."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=0 if self._output.is_broken else grace)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=1.0)  # a task that ignores its cancellation is abandoned

    def _readable(self) -> None:
        try:
            data = os.read(self._source, self._chunk)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            log.info("reading the input failed: %s", error)
            data = b""
        self._chunk = CHUNK if len(data) < self._chunk else LARGE_CHUNK
        self._feed(data)

    async def _read_file(self) -> None:
        while self._reading:
            try:
                data = await asyncio.to_thread(os.read, self._source, LARGE_CHUNK)
            except OSError as error:
                log.info("reading the input failed: %s", error)
                data = b""
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        if not data:
            self._end_input()
            return
        *whole, rest = data.split(b"\n")
        if whole and (self._part or self._skipping):
            self._complete_line(whole.pop(0))
        self._lines += [line for line in whole if line and not line.isspace()]
        if rest and not self._skipping:
            self._part.append(rest)
            self._part_size += len(rest)
            if self._part_size > MAX_LINE:
                self._refuse_line()
        self._start_tasks()

    def _complete_line(self, line: bytes) -> None:
        if self._skipping:
            self._skipping = False
            return
        if self._part:
            self._part.append(line)
            line = b"".join(self._part)
            self._part, self._part_size = [], 0
        if line and not line.isspace():
            self._lines.append(line)

    def _refuse_line(self) -> None:
        self._part, self._part_size = [], 0
        self._skipping = True
        self._output.send(Failure(None, InvalidRequest(f"a message of more than {MAX_LINE} bytes")))

    def _start_tasks_soon(self) -> None:
        if not self._work_due:
            self._work_due = True
            self._loop.call_soon(self._start_tasks)

    def _start_tasks(self) -> None:
        """Begin the work on the lines read, MAX_STARTED in one turn of the event loop."""
        self._work_due = False
        output = self._output
        for _ in range(MAX_STARTED):
            if not self._lines or output.is_full or self._size_in_work >= MAX_IN_WORK:
                break
            line = self._lines.popleft()
            task = asyncio_tasks.start(self._loop, self._dispatcher.handle(line, self._session, output))
            self._tasks[task] = len(line)
            self._size_in_work += len(line)
            task.add_done_callback(self._finish_task)
        if self._at_end and not self._lines:
            self.end()
        elif output.is_full or self._size_in_work >= MAX_IN_WORK:
            self._pause()
        elif self._lines:
            self._start_tasks_soon()  # the pipe has room again, and no callback would start them

    def _finish_task(self, task: "asyncio.Task[Any]") -> None:
        self._size_in_work -= self._tasks.pop(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a message's task failed", exc_info=task.exception())
        if self._size_in_work < MAX_IN_WORK and not self._output.is_full:
            self.read()

    def _end_input(self) -> None:
        """Handle the end of input; lines already read still run once the output has room."""
        self._at_end = True
        if self._part:  # a last line without its line break
            self._complete_line(b"")
        self._pause()
        self._start_tasks()

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._source)
        if self._output.is_full and self._stalled is None:
            self._stalled = self._loop.call_later(STALL, self._check_client, self._output.taken_size)

    def _check_client(self, taken: int) -> None:
        """End if the client has disconnected without reading: its end of input is not read meanwhile."""
        self._stalled = None
        if self.ended.is_set() or not self._output.is_full:
            return
        if self._output.taken_size == taken and _has_hung_up(self._source):
            log.info("the client has hung up without reading its answers")
            self.end()
        else:
            self._stalled = self._loop.call_later(STALL, self._check_client, self._output.taken_size)


def _has_hung_up(descriptor: int) -> bool:
    state = select.poll()
    state.register(descriptor, select.POLLHUP)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in state.poll(0))
