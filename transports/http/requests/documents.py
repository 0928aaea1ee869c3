"""Serve OAuth metadata to any client. Source: RFC 8615."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from toolgate.server.base.http.head import format_lines
from toolgate.transports.http.requests import cors
from toolgate.transports.http.wire.request import HttpRequest, WholeResponse, refuse

MAX_AGE = 600  # seconds a document may be cached: scopes change with the plugins, and nothing else does
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
