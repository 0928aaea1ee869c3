"""Serve OAuth metadata to any client, and `/metrics` to clients with its token. Source: RFC 8615."""

import hmac
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from toolgate.server.base.http.head import format_lines
from toolgate.transports.http.requests import cors
from toolgate.transports.http.wire.request import HttpRequest, WholeResponse, refuse

MAX_AGE = 600  # seconds a document may be cached: scopes change with the plugins, and nothing else does
CHALLENGE = (b"www-authenticate", b'Bearer realm="metrics"')
NO_STORE = (b"cache-control", b"no-store")
READING = ("GET", "HEAD")


class PublicDocument:
    """Serves one document; `read()` returns its current content."""

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read = read

    def __call__(self, request: HttpRequest) -> WholeResponse:
        method = request.head.method
        if method == "OPTIONS":
            return WholeResponse(204, format_lines(cors.allow_any_origin(b"GET, HEAD, OPTIONS")))
        if method not in READING:
            allow = (b"allow", b"GET, HEAD, OPTIONS")
            return refuse(405, "the method must be GET or HEAD", [cors.ANY_ORIGIN, allow])
        age = (b"cache-control", f"public, max-age={MAX_AGE}".encode())
        lines = format_lines([(b"content-type", b"application/json"), age, cors.ANY_ORIGIN])
        return WholeResponse(200, lines, msgspec.json.encode(self._read()))


class MetricsEndpoint:
    """Serves `/metrics`; `render()` returns its body. Without a `token` any client may read it."""

    def __init__(self, render: Callable[[], bytes], content_type: str, token: str | None) -> None:
        self._render = render
        self._content_type = content_type.encode()
        self._token = sha256(token.encode()).digest() if token is not None else None

    def __call__(self, request: HttpRequest) -> WholeResponse:
        if request.head.method not in READING:
            return refuse(405, "the method must be GET or HEAD", [(b"allow", b"GET, HEAD")])
        if not self._is_authorized(request.headers):
            return refuse(401, "this needs the metrics token", [CHALLENGE, NO_STORE])
        return WholeResponse(200, format_lines([(b"content-type", self._content_type), NO_STORE]), self._render())

    def _is_authorized(self, headers: Mapping[bytes, bytes]) -> bool:
        if self._token is None:
            return True
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(sha256(token.strip(b" ")).digest(), self._token)
