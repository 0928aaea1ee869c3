"""Hold an answer back until the large body that it does not wait for has come.

A client that still sends may not listen yet, and a proxy in between hangs up on one that is answered early.
Source: RFC 9112 section 9.6 (who answers early and closes may undo its answer), RFC 9110 section 10.1.1.
"""

import asyncio
import contextlib

from toolgate.transports.http.asgi import Message, Receive, Send

SMALL = 64 * 1024  # bytes: what is no larger is on its way as a whole before any answer can meet it
MAX_DRAINED = 64 * 2**20  # bytes that are read for nothing: four times what is ever taken
DRAIN_TIME = 15.0  # seconds for the rest of a body
QUIET_TIME = 5.0  # seconds without a byte: a client that sends no more is listening
MAX_DRAINS = 256  # bodies that are read for nothing: with more, refused clients could hold all connections
PROXIED = {b"x-forwarded-for", b"forwarded", b"via"}  # headers of what came through a proxy
TOO_SLOW = 408  # the status that says that enough was waited


class BodyDrain:
    """Reads large bodies to their end before they are answered, at most MAX_DRAINS at once."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(MAX_DRAINS)

    def wrap(self, headers: list[tuple[bytes, bytes]], receive: Receive, send: Send) -> tuple[Receive, Send]:
        """Return `receive` and `send` for one request with these headers: the same where its body is small."""
        if not _may_be_long(headers):
            return receive, send
        body = _DrainedBody(receive, send, self._room, waits=_waits_for_continue(headers))
        return body.receive, body.send


class _DrainedBody:
    """A body; `waits`: its sender begins once it is asked to."""

    def __init__(self, receive: Receive, send: Send, room: asyncio.Semaphore, *, waits: bool) -> None:
        self._receive = receive
        self._send = send
        self._room = room
        self._waits = waits
        self._more = True

    async def receive(self) -> Message:
        self._waits = False
        message = await self._receive()
        self._more = message["type"] == "http.request" and bool(message.get("more_body"))
        return message

    async def send(self, message: Message) -> None:
        is_coming = self._more and not self._waits and message.get("status") != TOO_SLOW
        if is_coming and not self._room.locked():
            async with self._room:
                await self._read_on()
        self._more = False
        await self._send(message)

    async def _read_on(self) -> None:
        size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_TIME):
                while self._more and size < MAX_DRAINED:
                    async with asyncio.timeout(QUIET_TIME):
                        size += len((await self.receive()).get("body", b""))


def _may_be_long(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether there may be more of a body than comes at once."""
    is_long = False
    for name, value in headers:
        is_long |= name == b"transfer-encoding"
        is_long |= name == b"content-length" and len(value) > 4 and value.isdigit() and int(value[:19]) > SMALL
    return is_long


def _waits_for_continue(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether nothing is sent before it is asked for. Proxies pass that header on, and send all the same."""
    names = {name for name, _ in headers}
    return b"expect" in names and not names & PROXIED
