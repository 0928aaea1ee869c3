"""Holds an answer back until the body that it does not wait for has come: who is still sending may not be listening,
and a proxy in between hangs up on them. Raw ASGI; knows nothing of what is asked or answered.

Source: RFC 9112 section 9.6 (who answers early and closes may undo its answer), RFC 9110 section 10.1.1.
"""

import asyncio
import contextlib

from toolgate.transports.http.host_origin import Application, Message, Receive, Scope, Send

SMALL = 64 * 1024  # bytes: what is no larger is on its way as a whole before any answer can meet it
MAX_DRAINED = 64 * 2**20  # bytes that are read for nothing: four times what is ever taken
DRAIN_TIME = 15.0  # seconds for the rest of a body
QUIET_TIME = 5.0  # seconds without a byte: who sends no more is listening
MAX_DRAINS = 256  # bodies that are read for nothing: more, and whoever may not come would hold all connections
PROXIED = {b"x-forwarded-for", b"forwarded", b"via"}  # what came through a proxy has
TOO_SLOW = 408  # says that enough was waited


class DrainMiddleware:
    """In front of `app`: large bodies are read to their end, whatever it answers to them."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._room = asyncio.Semaphore(MAX_DRAINS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _may_be_long(scope["headers"]):
            body = _DrainedBody(receive, send, self._room, waits=_waits_for_continue(scope["headers"]))
            await self._app(scope, body.receive, body.send)
        else:
            await self._app(scope, receive, send)


class _DrainedBody:
    """`waits`: who sends it does so once it is asked for, and not before."""

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
        comes = self._more and not self._waits and message.get("status") != TOO_SLOW
        if comes and not self._room.locked():
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


def _waits_for_continue(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether nothing is sent before it is asked for. Proxies pass the word on, and send all the same."""
    names = {name for name, _ in headers}
    return b"expect" in names and not names & PROXIED


def _may_be_long(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether there may be more of a body than comes at once."""
    long = False
    for name, value in headers:
        long |= name == b"transfer-encoding"
        long |= name == b"content-length" and len(value) > 4 and value.isdigit() and int(value[:19]) > SMALL
    return long
