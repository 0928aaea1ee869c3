"""Check the Host, Origin and proxy headers of every HTTP request first, give the request an id, and find its handler.

The id names the request in its answer and in each log line.
Source: MCP 2025-11-25 and 2026-07-28 basic/transports, "Security".
"""

import random
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache

import msgspec

from toolgate.server.base.http.head import MAX_CACHED, Head, format_lines
from toolgate.server.base.limits.state_budget import start_budget
from toolgate.server.base.log_format import LOG_CONTEXT, LogContext
from toolgate.transports.http.requests import cors
from toolgate.transports.http.wire.request import Answer, Handler, HttpRequest, WholeResponse, refuse

LOOPBACK = frozenset(("localhost", "127.0.0.1", "[::1]"))
PROBES = frozenset(("/health", "/ready"))
PROXIED = frozenset((b"forwarded", b"via", b"x-real-ip"))  # and all x-forwarded-*
REQUEST_ID_HEADER = b"x-request-id"
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
NO_PROXY = "with --auth none this server answers no requests from a proxy; the operator can use --auth oauth"
NO_HOST = "this server does not serve this Host; the operator can allow it with --allowed-hosts"
NO_ORIGIN = "this Origin may not call this server; the operator can allow it with --allowed-origins"


class RoutedHead(msgspec.Struct, frozen=True):
    """What follows from a head: an answer, or a handler whose answer has these lines."""

    answer: WholeResponse | None
    handler: Handler
    lines: bytes = b""


class Front:
    """Answers all requests of a server.

    - `endpoints`: handlers by path. `pages` answers all other paths.
    - `hosts`, `origins`: those allowed beside the loopback names.
    - `behind_proxy`: requests may come through a proxy.
    - `prefix`: the path that a proxy removes, or "".
    - `shared`: paths that any origin may read; their answers have their own CORS headers.
    - `single`: headers that name a person: two lines that differ are refused.
    - `trusts(peer)`: true for a trusted proxy, whose requests keep their id.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Handler],
        pages: Handler,
        hosts: Iterable[str],
        origins: Iterable[str],
        *,
        loopback: bool,
        behind_proxy: bool,
        prefix: str = "",
        shared: Collection[str] = (),
        single: Collection[bytes] = (),
        trusts: Callable[[str], bool] | None = None,
    ) -> None:
        self._endpoints = endpoints
        self._pages = pages
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._loopback = loopback
        self._behind_proxy = behind_proxy
        self._prefix = prefix
        self._shared = frozenset(shared)
        self._single = single
        self._trusts = trusts
        self._find_known_route = lru_cache(1_024)(self._find_route)  # clients repeat their heads

    def __call__(self, request: HttpRequest) -> Answer:
        id = self._choose_id(request)
        LOG_CONTEXT.set(LogContext(id.decode("ascii")))
        start_budget()
        head = request.head
        route = self._find_known_route(head) if head.size <= MAX_CACHED else self._find_route(head)
        request.lines = b"%b: %b\r\n%b" % (REQUEST_ID_HEADER, id, route.lines)
        return route.handler(request) if route.answer is None else route.answer

    def _find_route(self, head: Head) -> RoutedHead:
        path = head.path
        if self._prefix and path.startswith(self._prefix + "/"):
            path = path[len(self._prefix) :]
        handler = self._endpoints.get(path, self._pages)
        answer = self._find_refusal(head)
        origin = head.headers.get(b"origin")
        if answer is not None or origin is None or head.path in PROBES or head.path in self._shared:
            return RoutedHead(answer, handler)
        if head.method == "OPTIONS":
            requested = head.headers.get(b"access-control-request-headers", b"")
            return RoutedHead(WholeResponse(204, format_lines(cors.answer_preflight(origin, requested))), handler)
        return RoutedHead(None, handler, format_lines(cors.allow_origin(origin)))

    def _find_refusal(self, head: Head) -> WholeResponse | None:
        """Return the answer that refuses a request with this head, or None."""
        headers = head.headers
        for name in self._single:
            if head.count(name) > 1:
                return refuse(400, f"the header {name.decode('ascii')} may occur only once")
        if not self._behind_proxy and _is_proxied(headers):
            return refuse(403, NO_PROXY)
        if head.path in PROBES:
            return None
        if not self._is_allowed_host(headers.get(b"host", b"").decode("latin-1").lower()):
            return refuse(421, NO_HOST)
        origin = headers.get(b"origin")
        if origin is None or head.path in self._shared or self._is_allowed_origin(origin.decode("latin-1").lower()):
            return None
        return refuse(403, NO_ORIGIN)

    def _choose_id(self, request: HttpRequest) -> bytes:
        """Return the id from a trusted proxy if it is fit for a log, else a new one."""
        if self._trusts is not None and self._trusts(request.client):
            id = request.headers.get(REQUEST_ID_HEADER, b"")
            if REQUEST_ID.fullmatch(id):
                return id
        return random.getrandbits(64).to_bytes(8).hex().encode()  # not secret, but not countable either

    def _is_allowed_host(self, host: str) -> bool:
        name = host.rpartition(":")[0] if _has_port(host) else host
        return host in self._hosts or name in self._hosts or (self._loopback and name in LOOPBACK)

    def _is_allowed_origin(self, origin: str) -> bool:
        if origin in self._origins:
            return True
        scheme, separator, rest = origin.partition("://")
        name = rest.rpartition(":")[0] if _has_port(rest) else rest
        return bool(separator) and self._loopback and scheme in ("http", "https") and name in LOOPBACK


def _is_proxied(headers: Mapping[bytes, bytes]) -> bool:
    return any(name in PROXIED or name.startswith(b"x-forwarded-") for name in headers)


def _has_port(host: str) -> bool:
    return host.rpartition(":")[2].isdigit() and not host.endswith("]")
