"""Answer a request to an ASGI application with one sentence, and look at its headers."""

from collections.abc import Iterable, Mapping

from toolgate.transports.http.wire.asgi import Application, Message, Receive, Scope, Send
from toolgate.transports.http.wire.request import HttpRequest

__all__ = ["Application", "Message", "Receive", "Scope", "Send", "headers_of", "is_browser", "refuse", "respond"]


def headers_of(scope: Scope) -> Mapping[bytes, bytes]:
    """Return the headers by name in lower case, each once."""
    request: HttpRequest = scope["toolgate.request"]
    return request.headers


def is_browser(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a person opened this URL in a browser: MCP clients do not accept HTML."""
    accept = headers.get(b"accept", b"")
    return method == "GET" and b"text/html" in accept and b"text/event-stream" not in accept


async def refuse(send: Send, status: int, text: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Answer with a sentence."""
    body = text.encode() + b"\n"
    content = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await respond(send, status, [*content, *headers], body)


async def respond(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
    """Answer with these headers and this body."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
