"""Serves documents that anyone may read from anywhere: OAuth metadata. Knows HTTP; knows nothing of what they say.

Source: RFC 8615 (well-known URIs); Fetch Standard, "CORS protocol".
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from toolgate.transports.http.host_origin import Receive, Scope, Send, refuse

MAX_AGE = 600  # seconds a document may be held: scopes change with the plugins, and nothing else does
SHARED = [(b"access-control-allow-origin", b"*")]
PREFLIGHT = [
    (b"access-control-allow-methods", b"GET, HEAD, OPTIONS"),
    (b"access-control-allow-headers", b"authorization, content-type, accept, mcp-protocol-version"),
    (b"access-control-max-age", b"600"),
]


class PublicDocument:
    """The ASGI application behind one document; `read()` gives it as it is now."""

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read = read

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        method = scope["method"]
        if method == "OPTIONS":
            await send({"type": "http.response.start", "status": 204, "headers": [*SHARED, *PREFLIGHT]})
            await send({"type": "http.response.body", "body": b""})
            return
        if method not in ("GET", "HEAD"):
            await refuse(send, 405, "GET or HEAD", [*SHARED, (b"allow", b"GET, HEAD, OPTIONS")])
            return
        body = msgspec.json.encode(self._read())
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", f"public, max-age={MAX_AGE}".encode()),
            *SHARED,
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})
