"""Serve one client over standard input and output: one JSON-RPC message per line, UTF-8.

Lines are handled concurrently. Unread output stops the reading of input, which bounds memory, and drops
progress and log messages. At the end of input, SIGTERM or SIGINT, running work gets the grace time, or until the next
signal; what is not done then is answered with an error. A stray `print` goes to standard error.
Source: MCP basic/transports, "stdio".
"""

import asyncio
import logging
import os
import select
import signal
from collections import deque
from collections.abc import Callable
from typing import Any

from toolgate.server.base import asyncio_tasks
from toolgate.server.protocol.dispatcher import Dispatcher
from toolgate.server.protocol.errors import InvalidRequest
from toolgate.server.protocol.interruption import interrupted_answer
from toolgate.server.protocol.message_ids import MessageEdges
from toolgate.server.protocol.messages import Failure, Request, decode
from toolgate.server.protocol.session import Session
from toolgate.transports.stdout_channel import StdoutChannel, widen_pipe

log = logging.getLogger("toolgate.stdio")

CHUNK = 64 * 1024  # bytes per read; glibc maps and unmaps memory for each buffer of 128 KiB or more
LARGE_CHUNK = 256 * 1024  # bytes of the read after one that filled its buffer
MAX_STARTED = 64  # messages in one turn: what they answer fits into the limits of unread output
MAX_LINE = 32 * 2**20  # an 8 MiB payload in base64 and its envelope; a longer line is refused at its end
MAX_IN_WORK = 64 * 2**20  # bytes of messages in progress that stop the reading of input: two of the largest
STALL = 5.0  # seconds between checks of a client that reads nothing
FLUSH_TIME = 1.0  # seconds until a client that reads none of the last answers has gone


async def serve(
    dispatcher: Dispatcher,
    session: Session,
    source: int,
    sink: int,
    grace: float,
    ending: Callable[[], None],
    *,
    reads_always: bool = False,
) -> None:
    """Serve until the input ends or a signal arrives; then call `ending` and give running work `grace` seconds.

    `reads_always`: the client is a server of ours. What it answers must arrive, however much it has not read.
    """
    loop = asyncio.get_running_loop()
    output = StdoutChannel(loop, sink)
    session.channel = output
    connection = StdioConnection(loop, dispatcher, session, source, output, reads_always=reads_always)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, connection.handle_signal)
    connection.read()
    await connection.ended.wait()
    ending()
    await connection.finish(grace)
    await output.drain(FLUSH_TIME)


class StdioConnection:
    """Reads lines and runs a task for each; the tasks answer on `output`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dispatcher: Dispatcher,
        session: Session,
        source: int,
        output: StdoutChannel,
        *,
        reads_always: bool = False,
    ) -> None:
        self.ended = asyncio.Event()
        self._loop = loop
        self._dispatcher = dispatcher
        self._session = session
        self._source = source
        self._output = output
        self._reads_always = reads_always
        self._tasks: dict[asyncio.Task[Any], int] = {}  # task → the size of its message
        self._size_in_work = 0  # bytes: the sum of those
        self._lines: deque[bytes] = deque()  # read but not started: the output was full
        self._part: list[bytes] = []  # the beginning of a line
        self._part_size = 0
        self._long: MessageEdges | None = None  # of the present line, if it is too long to be kept
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

    def handle_signal(self) -> None:
        """End, or interrupt what runs: the input had ended, or it is the second signal."""
        if self.ended.is_set():
            self._interrupt()
            return
        if self._reading and self._file_reader is None and _has_event(self._source, select.POLLIN):
            self._readable()  # what was sent before the signal
        self.end()

    def end(self) -> None:
        """Stop reading: the input ended, a signal arrived, or the client has gone."""
        self.ended.set()
        for line in self._lines:
            self._refuse_waiting(line)
        self._lines.clear()
        self._pause()
        if self._stalled is not None:
            self._stalled.cancel()

    async def finish(self, grace: float) -> None:
        """Wait at most `grace` seconds for running work, and interrupt the rest."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=0 if self._output.is_broken else grace)
        self._interrupt()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=1.0)  # a task that ignores its cancellation is abandoned

    def _interrupt(self) -> None:
        """Cancel running work once. Its requests are answered with an error."""
        if not self._dispatcher.is_ending:
            self._dispatcher.is_ending = True
            for task in list(self._tasks):
                self._loop.call_soon(task.cancel)  # after its first step: before it no work is answered

    def _refuse_waiting(self, line: bytes) -> None:
        """Answer the requests of a line that was read but not started."""
        message = decode(line)
        waiting = message if isinstance(message, list) else [message]
        ids = [each.id for each in waiting if isinstance(each, Request)]
        if ids:
            self._output.send(interrupted_answer(ids if isinstance(message, list) else ids[0]))

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
        if whole and (self._part or self._long is not None):
            self._complete_line(whole.pop(0))
        self._lines += [line for line in whole if line and not line.isspace()]
        if rest:
            self._add_part(rest)
        self._start_tasks()

    def _add_part(self, part: bytes) -> None:
        if self._long is not None:
            self._long.add(part)
            return
        self._part.append(part)
        self._part_size += len(part)
        if self._part_size > MAX_LINE:
            self._long = MessageEdges()
            for each in self._part:
                self._long.add(each)
            self._part, self._part_size = [], 0

    def _complete_line(self, line: bytes) -> None:
        if self._long is not None:
            self._long.add(line)
            error = InvalidRequest(f"a message of more than {MAX_LINE} bytes")
            self._output.send(Failure(self._long.find_id(), error))
            self._long = None
            return
        if self._part:
            self._part.append(line)
            line = b"".join(self._part)
            self._part, self._part_size = [], 0
        if line and not line.isspace():
            self._lines.append(line)

    def _start_tasks_soon(self) -> None:
        if not self._work_due:
            self._work_due = True
            self._loop.call_soon(self._start_tasks)

    def _start_tasks(self) -> None:
        """Begin the work on the lines read, MAX_STARTED in one turn of the event loop."""
        self._work_due = False
        output = self._output
        for _ in range(MAX_STARTED):
            if not self._lines or self._has_to_wait():
                break
            line = self._lines.popleft()
            output.waits_for_more = bool(self._lines or self._tasks)
            task = asyncio_tasks.start(self._loop, self._dispatcher.handle(line, self._session, output))
            self._tasks[task] = len(line)
            self._size_in_work += len(line)
            task.add_done_callback(self._finish_task)
        if self._at_end and not self._lines:
            self.end()
        elif self._has_to_wait():
            self._pause()
        elif self._lines:
            self._start_tasks_soon()  # the pipe has room again, and no callback would start them

    def _finish_task(self, task: "asyncio.Task[Any]") -> None:
        self._size_in_work -= self._tasks.pop(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a message's task failed", exc_info=task.exception())
        if not self._has_to_wait():
            self.read()

    def _has_to_wait(self) -> bool:
        """Return whether too much is unread or in work to begin more."""
        return (self._output.is_full or self._size_in_work >= MAX_IN_WORK) and not self._reads_always

    def _end_input(self) -> None:
        """Handle the end of input; lines already read still run once the output has room."""
        self._at_end = True
        if self._part or self._long is not None:  # a last line without its line break
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
        if self._output.taken_size == taken and _has_event(self._source, select.POLLHUP):
            log.info("the client has hung up without reading its answers")
            self.end()
        else:
            self._stalled = self._loop.call_later(STALL, self._check_client, self._output.taken_size)


def _has_event(descriptor: int, event: int) -> bool:
    """Return whether `event` (select.POLLIN, select.POLLHUP) or an error is there now."""
    state = select.poll()
    state.register(descriptor, event)
    return any(found & (event | select.POLLERR) for _, found in state.poll(0))
