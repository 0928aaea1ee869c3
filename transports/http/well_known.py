"""Serve documents that anyone may read from anywhere: OAuth metadata.

Source: RFC 8615 (well-known URIs).
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from toolgate.transports.http import cors
from toolgate.transports.http.asgi import Receive, Scope, Send, refuse

MAX_AGE = 600  # seconds a document may be held: scopes change with the plugins, and nothing else does


class PublicDocument:
    """The ASGI application behind one document; `read()` returns it as it is now."""

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read = read

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        method, status, body = scope["method"], 200, b""
        if method == "OPTIONS":
            status, headers = 204, cors.allow_any_origin(b"GET, HEAD, OPTIONS")
        elif method in ("GET", "HEAD"):
            body = msgspec.json.encode(self._read())
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"cache-control", f"public, max-age={MAX_AGE}".encode()),
                cors.ANY_ORIGIN,
            ]
        else:
            await refuse(send, 405, "GET or HEAD", [cors.ANY_ORIGIN, (b"allow", b"GET, HEAD, OPTIONS")])
            return
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})
