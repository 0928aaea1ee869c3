"""The reply to one POST: undecided until something comes, then one JSON body or an event stream. Knows what an answer
looks like; knows nothing of sessions or methods.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from toolgate.server.messages import Outbound, encode
from toolgate.transports.events import Stream, is_answer
from toolgate.transports.guard import Send

JSON = (b"content-type", b"application/json")


class Reply:
    """The channel of one POST. It turns out to have an `answer`, to be sent as JSON, or a `stream`."""

    __slots__ = ("_make", "_turned", "answer", "stream")

    def __init__(self, make: Callable[[], Stream]) -> None:
        self._make = make
        self.answer: Any = None
        self.stream: Stream | None = None
        self._turned: asyncio.Future[None] | None = None  # only where somebody has to wait: few answers take a while

    def send(self, message: Outbound) -> None:
        if self.stream is None:
            if self.answer is not None:
                return  # it has been answered: nothing may follow
            if is_answer(message):
                self.answer = message
                self._turn()
                return
            self.stream = self._make()
            self._turn()
        self.stream.send(message)
        if is_answer(message):
            self.stream.end()

    def pause(self) -> None:
        self.open()
        if self.stream is not None:
            self.stream.pause()

    def open(self) -> None:
        """Make it a stream, if it is nothing yet."""
        if self.stream is None and self.answer is None:
            self.stream = self._make()
            self._turn()

    def finish(self, _task: "asyncio.Task[None]") -> None:
        """The work is over, answered or not: a cancelled request ends its stream without an answer."""
        self.open()
        if self.stream is not None:
            self.stream.end()

    async def turn_out(self, patience: float) -> None:
        """Wait until it is known what the reply is: after `patience` seconds of silence it is a stream."""
        if self.answer is not None or self.stream is not None:
            return
        loop = asyncio.get_running_loop()
        self._turned = loop.create_future()
        timer = loop.call_later(patience, self.open)
        try:
            await self._turned
        finally:
            timer.cancel()

    def _turn(self) -> None:
        if self._turned is not None and not self._turned.done():
            self._turned.set_result(None)


async def answer(send: Send, message: Outbound, status: int, extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """One JSON body."""
    body = encode(message)
    told = [JSON, (b"content-length", str(len(body)).encode()), *extra]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body})


async def accept(send: Send, status: int = 202) -> None:
    """No body."""
    told = [] if status == 204 else [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": b""})
