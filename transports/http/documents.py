"""Serve OAuth metadata to any client, and `/metrics` to clients with its token. Source: RFC 8615."""

import hmac
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from toolgate.transports.http import cors
from toolgate.transports.http.asgi import Headers, Receive, Scope, Send, refuse, respond

MAX_AGE = 600  # seconds a document may be cached: scopes change with the plugins, and nothing else does
CHALLENGE = (b"www-authenticate", b'Bearer realm="metrics"')
NO_STORE = (b"cache-control", b"no-store")


class PublicDocument:
    """Serves one document; `read()` returns its current content."""

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read = read

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["method"] == "OPTIONS":
            await respond(send, 204, cors.allow_any_origin(b"GET, HEAD, OPTIONS"))
        elif scope["method"] in ("GET", "HEAD"):
            extra = [(b"cache-control", f"public, max-age={MAX_AGE}".encode()), cors.ANY_ORIGIN]
            await _send_document(scope, send, b"application/json", msgspec.json.encode(self._read()), extra)
        else:
            allow = (b"allow", b"GET, HEAD, OPTIONS")
            await refuse(send, 405, "the method must be GET or HEAD", [cors.ANY_ORIGIN, allow])


class MetricsEndpoint:
    """Serves `/metrics`; `render()` returns its body. Without a `token` any client may read it."""

    def __init__(self, render: Callable[[], bytes], content_type: str, token: str | None) -> None:
        self._render = render
        self._content_type = content_type.encode()
        self._token = sha256(token.encode()).digest() if token is not None else None

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            await refuse(send, 405, "the method must be GET or HEAD", [(b"allow", b"GET, HEAD")])
        elif not self._is_authorized(scope["toolgate.headers"]):
            await refuse(send, 401, "this needs the metrics token", [CHALLENGE, NO_STORE])
        else:
            await _send_document(scope, send, self._content_type, self._render(), [NO_STORE])

    def _is_authorized(self, headers: Headers) -> bool:
        if self._token is None:
            return True
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(sha256(token.strip(b" ")).digest(), self._token)


async def _send_document(scope: Scope, send: Send, content_type: bytes, body: bytes, extra: cors.HeaderLines) -> None:
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode()), *extra]
    await respond(send, 200, headers, b"" if scope["method"] == "HEAD" else body)
