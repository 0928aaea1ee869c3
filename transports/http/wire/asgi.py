"""Serve an ASGI application, such as Starlette's routes. Source: the ASGI specification, HTTP 2.3."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from toolgate.server.base.http.head import format_lines
from toolgate.transports.http.wire.request import HttpRequest, StreamedResponse
from toolgate.transports.http.wire.writer import AnswerWriter

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def answer_with(app: Application, request: HttpRequest, root_path: str = "") -> StreamedResponse:
    """Return the answer that `app` gives. Its scope has the `HttpRequest` under `toolgate.request`."""
    return StreamedResponse(partial(_run, app, request, root_path))


async def _run(app: Application, request: HttpRequest, root_path: str, writer: AnswerWriter) -> None:
    exchange = AsgiExchange(request, writer)
    await app(_create_scope(request, root_path), exchange.receive, exchange.send)


def _create_scope(request: HttpRequest, root_path: str) -> Scope:
    head = request.head
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": head.version,
        "method": head.method,
        "scheme": "http",
        "path": head.path,
        "raw_path": head.raw_path,
        "query_string": head.query,
        "root_path": root_path,
        "headers": list(head.headers.items()),
        "client": (request.client, 0) if request.client else None,
        "server": None,
        "state": {},
        "toolgate.request": request,
    }


class AsgiExchange:
    """`receive` and `send` of one request."""

    def __init__(self, request: HttpRequest, writer: AnswerWriter) -> None:
        self._request = request
        self._writer = writer
        self._has_body = True  # there is more of it to receive
        self._lost: asyncio.Event | None = None

    async def receive(self) -> Message:
        """Return the next part of the body, then wait until the client disconnects. Raises BodyTooSlowError."""
        if self._has_body and not self._request.is_lost:
            data, self._has_body = await self._request.read()
            return {"type": "http.request", "body": data, "more_body": self._has_body}
        if self._lost is None:
            self._lost = asyncio.Event()
            self._request.ends_with_client = True
            self._request.watch_client(self._lost.set)
        await self._lost.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._begin(message)
            return
        await self._writer.write(message.get("body", b""))
        if not message.get("more_body", False):
            self._writer.end()

    async def _begin(self, message: Message) -> None:
        length: int | None = None
        closes = False
        headers: list[tuple[bytes, bytes]] = []
        for name, value in message.get("headers", ()):
            match name.lower():
                case b"content-length":
                    length = int(value)
                case b"connection":
                    closes = closes or value.lower() == b"close"
                case b"transfer-encoding" | b"date":
                    pass  # the connection's own
                case lower:
                    headers.append((lower, value))
        body = self._request.incoming
        if body is not None and not body.is_complete and not closes:
            await body.drop()
        self._writer.begin(message["status"], format_lines(headers), length, closes=closes)
