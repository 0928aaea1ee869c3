"""Define ASGI types, find the application of a path, and answer a request with one sentence."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
SendWhole = Callable[[int, bytes, bytes], bool]
"""Status, header lines without content-length, and body → whether they are sent; else use Send."""
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = dict[bytes, bytes]  # by lower-case name, each once
Pending = Awaitable[None] | None
"""What is left to await for a request; None: it is answered."""
EagerApplication = Callable[[Scope, Receive, Send], Pending]
"""An application that begins at once, without a task, and as a rule ends so. An ASGI application is one, too."""


async def refuse(send: Send, status: int, text: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Answer with a sentence."""
    body = text.encode() + b"\n"
    content = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await respond(send, status, [*content, *headers], body)


def is_browser(scope: Scope) -> bool:
    """Return whether a person opened this URL in a browser: MCP clients do not accept HTML."""
    if scope["method"] != "GET":
        return False
    accept: bytes = scope["toolgate.headers"].get(b"accept", b"")
    return b"text/html" in accept and b"text/event-stream" not in accept


async def respond(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
    """Answer with these headers and this body."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def finish(pending: Pending) -> None:
    """Await what is left of a request, if anything."""
    if pending is not None:
        await pending


class AsgiAdapter:
    """Serves ASGI with an eager application."""

    def __init__(self, app: EagerApplication) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await finish(self._app(scope, receive, send))


class EndpointTable:
    """Serve the transports' endpoints by path, which nearly all requests ask for, and all others through `router`."""

    def __init__(self, endpoints: Mapping[str, EagerApplication], router: Application) -> None:
        self._endpoints = endpoints
        self._router = router

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Pending:
        endpoint = None if scope["root_path"] else self._endpoints.get(scope["path"])
        return (endpoint or self._router)(scope, receive, send)
