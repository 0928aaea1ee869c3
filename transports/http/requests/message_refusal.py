"""Refuse MCP messages on the paths of pages, and name the URLs that take them."""

from collections.abc import Callable, Sequence

from toolgate.server.protocol.errors import InvalidRequest
from toolgate.server.protocol.messages import Failure, encode
from toolgate.transports.http.requests.asgi import Application, Receive, Scope, Send, headers_of, respond

NO_STORE = (b"cache-control", b"no-store")


class MessageRefusal:
    """Serves `app`, except to the requests of MCP clients. `urls` holds each transport's title and URL.

    People paste the server's address without the path of a transport. Their client would get the sign-in page.
    """

    def __init__(
        self, app: Application, is_misdirected: Callable[[Scope], bool], urls: Sequence[tuple[str, str]]
    ) -> None:
        self._app = app
        self._is_misdirected = is_misdirected
        places = ", ".join(f"{title} is at {url}" for title, url in urls)
        self._body = encode(Failure(None, InvalidRequest(f"MCP is not served at this path: {places}")))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._is_misdirected(scope):
            await self._app(scope, receive, send)
            return
        length = str(len(self._body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length), NO_STORE]
        await respond(send, 404, headers, self._body)


def posts_message(scope: Scope) -> bool:
    """Return whether a request posts JSON, as no form of a page does."""
    return scope["method"] == "POST" and _media_type(scope, b"content-type") == b"application/json"


def opens_stream(scope: Scope) -> bool:
    """Return whether a request accepts nothing but an event stream."""
    return scope["method"] == "GET" and _media_type(scope, b"accept") == b"text/event-stream"


def _media_type(scope: Scope, name: bytes) -> bytes:
    """Return a header without its parameters."""
    value = headers_of(scope).get(name, b"")
    return value.partition(b";")[0].strip().lower()
