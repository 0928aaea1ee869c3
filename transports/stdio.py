"""Serves one client over standard input and output: a JSON-RPC message a line, UTF-8. Knows pipes, but no MCP.

What it promises: lines are handled side by side; output that the client does not read stops the reading of more input
(`PAUSE_ABOVE`), so that memory stays bounded, and meanwhile drops progress and log messages; end of input, SIGTERM and
SIGINT let what is running finish within the grace time; a stray `print` goes to standard error.
Source: MCP basic/transports, "stdio".
"""

import asyncio
import contextlib
import logging
import os
import signal
import stat
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from toolgate.server import eager
from toolgate.server.dispatcher import Dispatcher
from toolgate.server.errors import InvalidRequest
from toolgate.server.messages import Failure, Notification, Outbound, encode
from toolgate.server.session import Session

log = logging.getLogger("toolgate.stdio")

CHUNK = 256 * 1024  # bytes a read; a pipe holds 64 KiB, a socket more
MAX_LINE = 32 * 2**20  # an 8 MiB payload in base64 with room for its envelope; a longer line is refused unread
PAUSE_ABOVE = 4 * 2**20  # bytes of unread output at which no more input is read
RESUME_BELOW = 2**20
DROPPABLE = frozenset(("notifications/progress", "notifications/message"))
FLUSH_TIME = 0.3  # seconds a client gets to read the last answers at the end


def claim() -> tuple[int, int]:
    """Take the protocol's two descriptors out of everybody's way, and give (input, output).

    From then on descriptor 0 is empty and descriptor 1 is standard error, for us, for plugins and for children.
    """
    taken = os.dup(0), os.dup(1)  # not inheritable
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return taken


async def serve(
    dispatcher: Dispatcher, session: Session, source: int, sink: int, grace: float, ending: Callable[[], None]
) -> None:
    """Serve until the input ends or a signal comes; then call `ending` and give what is running `grace` seconds."""
    loop = asyncio.get_running_loop()
    output = Output(loop, sink)
    session.channel = output
    connection = Connection(loop, dispatcher, session, source, output)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, connection.end)
    connection.read()
    await connection.ended.wait()
    ending()
    await connection.finish(grace)
    await output.drain(FLUSH_TIME)


class Output:
    """The channel to the client. Never blocks; keeps what the pipe won't take yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sink: int) -> None:
        self.broken = False
        self.waiting = 0  # bytes not taken by the pipe
        self.on_room: Any = None  # called when so little waits that input may be read again
        self.on_break: Any = None
        self.corked = False  # a batch of input is being worked on: one write for all its answers
        self._loop = loop
        self._sink = sink
        self._chunks: deque[bytes] = deque()
        self._offset = 0  # of what is already written of the first chunk
        self._due = False
        self._idle = asyncio.Event()
        self._idle.set()
        mode = os.fstat(sink).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):  # a terminal is shared with others, a file never blocks
            os.set_blocking(sink, False)

    @property
    def full(self) -> bool:
        return self.waiting > PAUSE_ABOVE

    def send(self, message: Outbound) -> None:
        if self.broken:
            return
        if self.full and isinstance(message, Notification) and message.method in DROPPABLE:
            return
        line = encode(message) + b"\n"
        self._chunks.append(line)
        self.waiting += len(line)
        if not self.corked and not self._due:
            self._due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what the pipe takes; wait for it to take more where it is full."""
        self._due = False
        while self._chunks and not self.broken:
            if len(self._chunks) > 1 and not self._offset:  # many small answers, one write
                self._chunks = deque((b"".join(self._chunks),))
            data = memoryview(self._chunks[0])[self._offset :]
            try:
                written = os.write(self._sink, data)
            except BlockingIOError:
                self._wait()
                return
            except OSError as error:
                self._break(error)
                return
            self._took(written, len(data))
        if not self._idle.is_set():
            self._loop.remove_writer(self._sink)
            self._idle.set()

    async def drain(self, seconds: float) -> None:
        """Wait until all is written, at most `seconds`."""
        self.flush()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()

    def _took(self, written: int, offered: int) -> None:
        self.waiting -= written
        if written == offered:
            self._chunks.popleft()
            self._offset = 0
        else:
            self._offset += written
        if self.waiting < RESUME_BELOW and self.on_room is not None:
            self.on_room()

    def _wait(self) -> None:
        if self._idle.is_set():
            self._idle.clear()
            self._loop.add_writer(self._sink, self.flush)

    def _break(self, error: OSError) -> None:
        """The client has gone: what waits for it is dropped, and so is what comes."""
        log.info("the client no longer reads: %s", error)
        self.broken = True
        self._chunks.clear()
        self.waiting = 0
        if not self._idle.is_set():
            self._loop.remove_writer(self._sink)
            self._idle.set()
        if self.on_break is not None:
            self.on_break()


class Connection:
    """Reads lines and starts a task for each; the tasks answer on `output`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dispatcher: Dispatcher,
        session: Session,
        source: int,
        output: Output,
    ) -> None:
        self.ended = asyncio.Event()
        self._loop = loop
        self._dispatcher = dispatcher
        self._session = session
        self._source = source
        self._output = output
        self._tasks: set[asyncio.Task[Any]] = set()
        self._lines: deque[bytes] = deque()  # read, but not begun: the output was full
        self._part: list[bytes] = []  # the beginning of a line
        self._part_size = 0
        self._skipping = False  # inside a line that is too long
        self._reading = False
        self._watched = True
        output.on_room = self.read
        output.on_break = self.end

    def read(self) -> None:
        """Go on reading, unless that is being done already."""
        if self._reading or self.ended.is_set():
            return
        self._reading = True
        if self._lines:
            self._loop.call_soon(self._work)
        try:
            self._loop.add_reader(self._source, self._readable)
        except PermissionError:  # a regular file or /dev/null can't be waited for
            self._watched = False
            task = self._loop.create_task(self._read_file())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        """No more input: the end of it, a signal, or a client that has gone."""
        self._pause()
        self._lines.clear()
        self.ended.set()

    async def finish(self, grace: float) -> None:
        """Let what is running finish, at most `grace` seconds, and call off the rest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=0 if self._output.broken else grace)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)  # a task that ignores its cancellation is left behind

    def _readable(self) -> None:
        try:
            data = os.read(self._source, CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            log.info("reading the input failed: %s", error)
            data = b""
        self._take(data)

    async def _read_file(self) -> None:
        while self._reading:
            data = await asyncio.to_thread(os.read, self._source, CHUNK)
            taken = asyncio.Event()
            self._loop.call_soon(self._take_from_file, data, taken)
            await taken.wait()

    def _take_from_file(self, data: bytes, taken: asyncio.Event) -> None:
        """`_take`, in a callback: it starts tasks, which a task can't do (eager.start)."""
        self._take(data)
        taken.set()

    def _take(self, data: bytes) -> None:
        if not data:
            self._at_end()
            return
        *whole, rest = data.split(b"\n")
        for line in whole:
            self._complete(line)
        if rest and not self._skipping:
            self._part.append(rest)
            self._part_size += len(rest)
            if self._part_size > MAX_LINE:
                self._too_long()
        if self._lines:
            self._work()

    def _complete(self, line: bytes) -> None:
        if self._skipping:
            self._skipping = False
            return
        if self._part:
            self._part.append(line)
            line = b"".join(self._part)
            self._part, self._part_size = [], 0
        if line and not line.isspace():
            self._lines.append(line)

    def _too_long(self) -> None:
        self._part, self._part_size = [], 0
        self._skipping = True
        self._output.send(Failure(None, InvalidRequest(f"a message of more than {MAX_LINE} bytes")))

    def _work(self) -> None:
        """Start a task for each line read, as long as their answers find room."""
        while self._lines and not self._output.full:
            self._work_corked()
        if self._output.full:
            self._pause()

    def _work_corked(self) -> None:
        """Write the immediate answers in one go; it may be more than there is room for, and still be taken at once."""
        output = self._output
        output.corked = True
        try:
            while self._lines and not output.full:
                work = self._dispatcher.handle(self._lines.popleft(), self._session, output)
                task = eager.start(self._loop, work)
                if not task.done():
                    self._tasks.add(task)
                    task.add_done_callback(self._done)
        finally:
            output.corked = False
        output.flush()

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a message's task failed", exc_info=task.exception())

    def _at_end(self) -> None:
        if self._part:  # a last line without its line break
            self._complete(b"")
            self._work()
        if not self._lines:
            self.end()
        else:
            self._pause()

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            if self._watched:
                self._loop.remove_reader(self._source)
