"""What every HTTP request passes before it reaches a transport: Host, Origin, proxies, size. Raw ASGI, so that it costs
little. Knows nothing of MCP but the names of its headers.

Source: MCP 2025-11-25 and 2026-07-28 basic/transports, "Security"; Fetch Standard, "CORS protocol".
"""

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = dict[bytes, bytes]

LOOPBACK = frozenset(("localhost", "127.0.0.1", "[::1]"))
PROBES = frozenset(("/health", "/ready"))
ALLOWED_HEADERS = (
    b"authorization, content-type, accept, last-event-id, mcp-session-id, mcp-protocol-version, mcp-method, mcp-name"
)
EXPOSED_HEADERS = b"mcp-session-id, mcp-protocol-version, www-authenticate, retry-after, x-request-id"
PROXIED = frozenset((b"forwarded", b"via", b"x-real-ip"))  # and all that begin with x-forwarded-
REPEATABLE_HEADERS = frozenset(  # may come in several lines; of those with addresses the proxy's is the last
    b"accept accept-encoding accept-language baggage cache-control cdn-loop cookie forwarded tracestate via "
    b"x-forwarded-for x-forwarded-host x-forwarded-port x-forwarded-proto".split()
)
TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 section 5.6.2
PREFLIGHT_FOR = b"600"  # seconds a browser may remember it


class RequestGuard:
    """`hosts` and `origins` are those allowed besides the loopback names; `behind_proxy` whether one may be in front;
    `prefix` is the path a proxy has taken off, "" where there is none; `shared` are the paths that pages of any Origin
    may ask: what answers there says so itself."""

    def __init__(
        self,
        app: Application,
        hosts: Iterable[str],
        origins: Iterable[str],
        *,
        loopback: bool,
        behind_proxy: bool,
        prefix: str = "",
        shared: Collection[str] = (),
    ) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._loopback = loopback
        self._behind_proxy = behind_proxy
        self._prefix = prefix
        self._shared = frozenset(shared)
        self._known_hosts: set[bytes] = (
            set()
        )  # Host values found good: there are few, and each comes with every request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _merge_headers(scope["headers"])
        if headers is None:
            await refuse(send, 400, "a header came twice that may come once")
            return
        scope["toolgate.headers"] = headers
        scope["root_path"] = self._prefix
        if not self._behind_proxy and _is_proxied(headers):
            await refuse(send, 403, "--auth none serves no request that came through a proxy; use --auth oauth")
            return
        if scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        host = headers.get(b"host", b"")
        if host not in self._known_hosts and not self._is_allowed_host(host):
            await refuse(send, 421, "this Host is not served here; --allowed-hosts allows it")
            return
        origin = headers.get(b"origin")
        if origin is None or scope["path"] in self._shared:
            await self._app(scope, receive, send)
        elif self._is_allowed_origin(origin):
            await self._with_origin(scope, receive, send, origin)
        else:
            await refuse(send, 403, "this Origin may not call; --allowed-origins allows it")

    async def _with_origin(self, scope: Scope, receive: Receive, send: Send, origin: bytes) -> None:
        """Let a browser's page have the answer, and answer its preflight."""
        shared = [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]
        if scope["method"] == "OPTIONS":
            asked = scope["toolgate.headers"].get(b"access-control-request-headers")
            allowed = [
                (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
                (b"access-control-allow-headers", _allowed_headers(asked)),
                (b"access-control-max-age", PREFLIGHT_FOR),
            ]
            await send({"type": "http.response.start", "status": 204, "headers": shared + allowed})
            await send({"type": "http.response.body", "body": b""})
            return

        async def send_shared(message: Message) -> None:
            if message["type"] == "http.response.start":
                exposed = (b"access-control-expose-headers", EXPOSED_HEADERS)
                message["headers"] = [*message.get("headers", ()), *shared, exposed]
            await send(message)

        await self._app(scope, receive, send_shared)

    def _is_allowed_host(self, host: bytes) -> bool:
        named = host.decode("latin-1").lower()
        name = named.rpartition(":")[0] if _has_port(named) else named
        good = named in self._hosts or name in self._hosts or (self._loopback and name in LOOPBACK)
        if good and len(self._known_hosts) < 1_000:
            self._known_hosts.add(host)
        return good

    def _is_allowed_origin(self, origin: bytes) -> bool:
        named = origin.decode("latin-1").lower()
        if named in self._origins:
            return True
        scheme, separator, rest = named.partition("://")
        name = rest.rpartition(":")[0] if _has_port(rest) else rest
        return bool(separator) and self._loopback and scheme in ("http", "https") and name in LOOPBACK


async def refuse(send: Send, status: int, text: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Answer with a sentence."""
    body = text.encode() + b"\n"
    told = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body})


def _merge_headers(given: list[tuple[bytes, bytes]]) -> Headers | None:
    """The headers by name; None where two disagree that may come once: whoever is in front may go by the other."""
    headers: Headers = dict(given)
    if len(headers) == len(given):
        return headers
    headers = {}
    for name, value in given:
        if headers.setdefault(name, value) != value:
            if name not in REPEATABLE_HEADERS:
                return None
            headers[name] += (b"; " if name == b"cookie" else b", ") + value  # RFC 9113 section 8.2.3
    return headers


def _is_proxied(headers: Headers) -> bool:
    return not PROXIED.isdisjoint(headers) or b"\nx-forwarded-" in b"\n".join((b"", *headers))  # faster than a loop


def _has_port(host: str) -> bool:
    return host.rpartition(":")[2].isdigit() and not host.endswith("]")


def _allowed_headers(asked: bytes | None) -> bytes:
    """The headers a preflight may use: ours, and the `Mcp-Param-*` it asks for, which tools name."""
    wanted = (name.strip().lower() for name in (asked or b"").split(b","))
    extra = [name for name in wanted if name.startswith(b"mcp-param-") and TOKEN.fullmatch(name)]
    return b", ".join([ALLOWED_HEADERS, *extra])
