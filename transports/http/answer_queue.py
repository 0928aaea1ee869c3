"""Begin the requests of one turn of the event loop in a fair order, and send their small answers together.

A system call after each request leaves the processor's caches cold for the next one. With eight clients a call takes a
tenth less processor time if the requests of a turn are worked on first, and their answers sent then. An answer waits
for the first steps of other requests until it is MAX_WAIT old, and for none with a large body.

The kernel names ready connections in the order of the last turn, with newcomers at the end. A client whose answer
is sent last would miss the next turn and be last again. So the client with the oldest last answer goes first.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from toolgate.server.protocol.first_steps import FirstSteps

MAX_WAIT = 0.0005  # seconds after which no further request starts before the answer is sent: some five small calls
Run = Callable[[Any, Any], None]

SMALL = 16 * 1024  # bytes of an answer that waits for the end of the turn


class AnswerQueue:
    """Holds the requests of one turn of the event loop until all are read, and their small answers until its end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.unstarted = 0  # requests that have arrived, and whose work has not begun
        self.steps = FirstSteps(loop)
        self._loop = loop
        self._common: tuple[Any, bytes] = None, b""
        self._since = 0.0  # loop time at which the first of them came
        self._waiting: list[HeadJoiningTransport] = []
        self._arrived: list[tuple[float, int, Run, Any, Any]] = []

    def begin(self, last_answer: float, run: Run, cycle: Any, app: Any) -> None:
        """Call `run(cycle, app)` when all that has come is read. `last_answer` is the loop time of its client's last
        one."""
        if not self._arrived:
            self._loop.call_soon(self._begin_all)
        self._arrived.append((last_answer, len(self._arrived), run, cycle, app))

    def _begin_all(self) -> None:
        arrived, self._arrived = self._arrived, []
        if len(arrived) > 1:
            arrived.sort()
        for _, _, run, cycle, app in arrived:
            run(cycle, app)

    def start_request(self, is_large: bool) -> None:
        """Note that the work on a request begins. Send first what has waited too long, or all before large work."""
        self.unstarted -= 1
        if self._waiting and (is_large or self._loop.time() - self._since > MAX_WAIT):
            self._send()

    def common_lines(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """Return the lines of the headers that all answers have. uvicorn makes another list each second."""
        if self._common[0] is not headers:
            self._common = headers, b"".join([b"%b: %b\r\n" % line for line in headers])
        return self._common[1]

    def add(self, transport: "HeadJoiningTransport") -> None:
        """Send the answers at the end of the turn, or now if no other request waits to be worked on."""
        self._waiting.append(transport)
        if not self.unstarted:
            self._send()
        elif len(self._waiting) == 1:
            self._since = self._loop.time()
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for transport in waiting:
            transport.send_answer()


class HeadJoiningTransport:
    """A transport that sends the head of an answer together with its body: each write is a system call and may wake the
    client."""

    __slots__ = ("_answer", "_head", "_queue", "_transport", "is_closing", "is_head_next")

    def __init__(self, transport: Any, queue: AnswerQueue) -> None:
        self.is_head_next = False  # the next write is the head of an answer
        self.is_closing = transport.is_closing
        self._queue = queue
        self._transport = transport
        self._head = b""
        self._answer = b""  # waits in the queue

    def write(self, data: bytes) -> None:
        if self.is_head_next:
            self.is_head_next = False
            self._head = data
        elif self._head and len(data) <= SMALL and not self._answer:
            data, self._head = self._head + data, b""
            self.write_answer(data)
        elif not self.is_closing():  # else uvloop raises
            self.send_answer()
            self._transport.writelines((self._head, data))
            self._head = b""

    def write_answer(self, data: bytes) -> None:
        """Write a small answer, head and body."""
        if self._answer:
            self.send_answer()
        self._answer = data
        self._queue.add(self)

    def send_answer(self) -> None:
        """Send the answer that waits in the queue, if it has not been sent."""
        if self._answer and not self.is_closing():
            self._transport.write(self._answer)
        self._answer = b""

    def flush(self) -> None:
        """Send a head without a body: an answer to HEAD, or a failed one."""
        if self._head:
            self.send_answer()
            if not self.is_closing():
                self._transport.write(self._head)
            self._head = b""

    def close(self) -> None:
        self.send_answer()
        self.flush()
        self._transport.close()

    # no `__getattr__`: a class with one looks up every attribute a slower way

    def abort(self) -> None:
        self._transport.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        size: int = self._transport.get_write_buffer_size()
        return size

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()
