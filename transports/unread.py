"""Holds an answer back until the body that it does not wait for has come: who is still sending may not be listening,
and a proxy in between hangs up on them. Raw ASGI; knows nothing of what is asked or answered.

Source: RFC 9112 section 9.6 (who answers early and closes may undo its answer), RFC 9110 section 10.1.1.
"""

import asyncio
import contextlib

from toolgate.transports.guard import Application, Message, Receive, Scope, Send

SMALL = 64 * 1024  # bytes: what is no larger is on its way as a whole before any answer can meet it
MOST = 64 * 2**20  # bytes that are read for nothing: four times what is ever taken
TIME = 15.0  # seconds for the rest of a body
STILL = 5.0  # seconds without a byte: who sends no more is listening
AT_ONCE = 256  # bodies that are read for nothing: more, and whoever may not come would hold all connections
TOO_SLOW = 408  # says that enough was waited


class Unread:
    """In front of `app`: large bodies are read to their end, whatever it answers to them."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._room = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _may_be_long(scope["headers"]):
            body = _Body(receive, send, self._room)
            await self._app(scope, body.receive, body.send)
        else:
            await self._app(scope, receive, send)


class _Body:
    def __init__(self, receive: Receive, send: Send, room: asyncio.Semaphore) -> None:
        self._receive = receive
        self._send = send
        self._room = room
        self._more = True

    async def receive(self) -> Message:
        message = await self._receive()
        self._more = message["type"] == "http.request" and bool(message.get("more_body"))
        return message

    async def send(self, message: Message) -> None:
        if self._more and message.get("status") != TOO_SLOW and not self._room.locked():
            async with self._room:
                await self._read_on()
        self._more = False
        await self._send(message)

    async def _read_on(self) -> None:
        size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TIME):
                while self._more and size < MOST:
                    async with asyncio.timeout(STILL):
                        size += len((await self.receive()).get("body", b""))


def _may_be_long(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether there may be more of a body than comes at once. Not where the client waits for leave to send it."""
    long = False
    for name, value in headers:
        if name == b"expect":
            return False
        long |= name == b"transfer-encoding"
        long |= name == b"content-length" and len(value) > 4 and value.isdigit() and int(value[:19]) > SMALL
    return long
