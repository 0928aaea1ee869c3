"""Reply to one POST: with one JSON body or an event stream, whichever its first message asks for.

Where the client takes no stream, the reply is a JSON body alone.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from toolgate.server.protocol.errors import InternalError
from toolgate.server.protocol.messages import Failure, Notification, Outbound, Request, encode, refuse_too_large
from toolgate.server.protocol.session import Channel
from toolgate.transports.http.asgi import Receive, Send
from toolgate.transports.http.event_ids import RequestIds
from toolgate.transports.http.event_stream import EventStream, is_answer

INTERRUPTED = "the server was restarted while this request was under way: whether it has had an effect is unknown"
SMALL = 64 * 1024  # bytes of an answer: what is no larger does not wait here for its reader
JSON = (b"content-type", b"application/json")


def interrupted_answer(asked: RequestIds) -> Outbound:
    """The answer to a request, or to those of a batch, that the end of a server broke off."""
    error = InternalError(INTERRUPTED)
    return [Failure(id, error) for id in asked] if isinstance(asked, list) else Failure(asked, error)


class PostReply:
    """The channel of one POST. It turns out to have an `answer`, to be sent as JSON, or a `stream`."""

    __slots__ = ("_make", "_turned", "answer", "stream")
    can_ask = True

    def __init__(self, make: Callable[[], EventStream]) -> None:
        self._make = make
        self.answer: Any = None
        self.stream: EventStream | None = None
        self._turned: asyncio.Future[None] | None = None  # only where the answer takes a while: few do

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

    def finish(self) -> None:
        """The work is over, answered or not: a cancelled request ends its stream without an answer."""
        self.open()
        if self.stream is not None:
            self.stream.end()

    async def wait_decided(self, patience: float) -> None:
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

    def stream_answer(self) -> EventStream:
        """The answer as the one event of a stream, for a client that takes nothing else."""
        self.stream = self._make()
        self.stream.send(self.answer)
        self.stream.end()
        return self.stream

    def _turn(self) -> None:
        if self._turned is not None and not self._turned.done():
            self._turned.set_result(None)


class JsonReply:
    """The channel of one POST whose client takes no stream: the `answer` comes at the end, alone. A question goes to
    `aside`, where there is one that reaches the client; progress and logs are dropped."""

    __slots__ = ("_aside", "_over", "answer")

    def __init__(self, aside: Channel | None) -> None:
        self._aside = aside
        self.answer: Any = None
        self._over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @property
    def can_ask(self) -> bool:
        return self._aside is not None and self._aside.can_ask

    def send(self, message: Outbound) -> None:
        if is_answer(message):
            self.answer = message if self.answer is None else self.answer
            self._end(True)
        elif self._aside is not None and is_about_question(message):
            self._aside.send(message)

    def pause(self) -> None:
        """There is no stream to come back to."""

    def finish(self) -> None:
        """The work is over, answered or not."""
        self._end(True)

    async def wait_ended(self, receive: Receive | None) -> bool:
        """Wait for the end of the work; false: the client, whose connection `receive` watches, hung up before it."""
        if self._over.done() or receive is None:
            return await self._over
        watch = asyncio.get_running_loop().create_task(self._watch(receive))
        try:
            return await self._over
        finally:
            watch.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._end(False)

    def _end(self, whole: bool) -> None:
        if not self._over.done():
            self._over.set_result(whole)


def is_about_question(message: Outbound) -> bool:
    """Whether it asks the client something, or calls that off."""
    return isinstance(message, Request) or (
        isinstance(message, Notification) and message.method == "notifications/cancelled"
    )


async def send_answer(
    send: Send,
    message: Outbound,
    status: int,
    extra: Iterable[tuple[bytes, bytes]] = (),
    has_room: Callable[[int], bool] | None = None,
) -> None:
    """One JSON body. Where a large one has no room, it is an error instead."""
    body = encode(message)
    if len(body) > SMALL and has_room is not None and not has_room(len(body)):
        body = encode(refuse_too_large(message))
    told = [JSON, (b"content-length", str(len(body)).encode()), *extra]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body})


async def send_accepted(send: Send, status: int = 202) -> None:
    """No body."""
    told = [] if status == 204 else [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": b""})
