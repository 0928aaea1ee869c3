"""Check the Host, Origin and proxy headers of every HTTP request first, give the request an id, and count it.

The id names the request in its answer and in each log line. An answer waits for the end of a large body. A client that
still sends may not read yet, and a proxy may disconnect one that is answered early.
Source: MCP 2025-11-25 and 2026-07-28 basic/transports, "Security"; RFC 9110 section 10.1.1; RFC 9112 section 9.6 (an
early answer followed by a close may be lost).
"""

import asyncio
import contextlib
import random
import re
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

import msgspec

from toolgate.server.telemetry.log_format import LOG_CONTEXT, LogContext
from toolgate.transports.http import cors
from toolgate.transports.http.asgi import (
    EagerApplication,
    Headers,
    Message,
    Pending,
    Receive,
    Scope,
    Send,
    finish,
    refuse,
    respond,
)
from toolgate.transports.http.cors import HeaderLines
from toolgate.transports.http.known_head import KnownHead

LOOPBACK = frozenset(("localhost", "127.0.0.1", "[::1]"))
PROBES = frozenset(("/health", "/ready"))
PROXIED = frozenset((b"forwarded", b"via", b"x-real-ip"))  # and all x-forwarded-*
REPEATABLE_HEADERS = frozenset(  # may be repeated; of those with addresses the proxy's is the last
    b"accept accept-encoding accept-language baggage cache-control cdn-loop cookie forwarded tracestate via "
    b"x-forwarded-for x-forwarded-host x-forwarded-port x-forwarded-proto".split()
)
REQUEST_ID_HEADER = b"x-request-id"
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
MAX_KNOWN_HOSTS = 1_000
SMALL = 64 * 1024  # bytes: a smaller body is sent before any answer arrives
MAX_DRAINED = 64 * 2**20  # bytes that are read and discarded: four times the largest body
DRAIN_TIME = 15.0  # seconds for the rest of a body
QUIET_TIME = 5.0  # seconds without a byte: then the client waits for the answer
MAX_DRAINS = 256  # bodies read and discarded at once: more could occupy all connections
FORWARDED = {b"x-forwarded-for", b"forwarded", b"via"}  # proxies pass `Expect` on, but send the body anyway
NO_PROXY = "with --auth none this server answers no requests from a proxy; the operator can use --auth oauth"
TOO_SLOW = 408  # the status that means that the wait is over


class RequestGuard:
    """The outermost application. `begin` serves requests with known heads at once where it can.

    - `hosts`, `origins`: those allowed beside the loopback names.
    - `behind_proxy`: requests may come through a proxy.
    - `prefix`: the path that a proxy removes, or "".
    - `shared`: paths that any origin may read; their answers have their own CORS headers.
    - `trusts(peer)`: true for a trusted proxy, whose requests keep their id.
    """

    def __init__(
        self,
        app: EagerApplication,
        hosts: Iterable[str],
        origins: Iterable[str],
        *,
        loopback: bool,
        behind_proxy: bool,
        prefix: str = "",
        shared: Collection[str] = (),
        trusts: Callable[[str], bool] | None = None,
    ) -> None:
        self.running = 0  # requests in progress, open streams included
        self.answered: dict[int, int] = {}  # by status
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._loopback = loopback
        self._behind_proxy = behind_proxy
        self._prefix = prefix
        self._shared = frozenset(shared)
        self._trusts = trusts
        self._drain = BodyDrain()
        self._known_hosts: set[bytes] = set()  # accepted Host values: few, and checked on each request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await finish(self._app(scope, receive, send))
            return
        head: KnownHead | None = scope.get("toolgate.head")
        if head is not None and head.checked is not None:
            await finish(self.begin(scope, receive, send))
            return
        labelled_send = self._label(scope, send)
        self.running += 1
        try:
            headers = _merge_headers(scope["headers"])
            if "toolgate.starts" in scope:
                scope["toolgate.starts"](_may_be_large(headers))
            receive, drained_send = self._drain.wrap(headers or dict(scope["headers"]), receive, labelled_send)
            if headers is None:
                await refuse(drained_send, 400, "a header that may occur only once came twice")
                return
            refusal = self._find_refusal(scope, headers)
            if refusal is not None:
                await refuse(drained_send, *refusal)
                return
            scope["toolgate.headers"] = headers
            scope["root_path"] = self._prefix
            origin = headers.get(b"origin")
            if origin is not None and scope["path"] not in PROBES and scope["path"] not in self._shared:
                if scope["method"] == "OPTIONS":
                    wanted = headers.get(b"access-control-request-headers", b"")
                    await respond(drained_send, 204, cors.answer_preflight(origin, wanted))
                    return
                labelled_send.extra = cors.allow_origin(origin)
            elif head is not None:
                head.checked = headers
            del headers  # a stream may stay open for days
            await finish(self._app(scope, receive, drained_send))
        finally:
            self.running -= 1

    def begin(self, scope: Scope, receive: Receive, send: Send) -> Pending:
        """Serve a request. If its head has passed before, this needs no task until something must be awaited."""
        head: KnownHead | None = scope["toolgate.head"]
        if head is None or head.checked is None:
            return self(scope, receive, send)
        labelled_send = self._label(scope, send)
        self.running += 1
        try:
            scope["toolgate.starts"](False)
            scope["toolgate.headers"] = head.checked
            scope["root_path"] = self._prefix
            pending = self._app(scope, receive, labelled_send)
        except BaseException:
            self.running -= 1
            raise
        if pending is not None:
            return self._finish(pending)
        self.running -= 1
        return None

    async def _finish(self, pending: Awaitable[None]) -> None:
        try:
            await pending
        finally:
            self.running -= 1

    def _label(self, scope: Scope, send: Send) -> "LabelledSend":
        """Give the request its id, and return what sends its answer."""
        proxy_id = self._proxy_id(scope) if self._trusts is not None else ""
        id = proxy_id or random.getrandbits(64).to_bytes(8).hex()  # not secret, but not countable either
        LOG_CONTEXT.set(LogContext(id))  # each request has context variables of its own
        return LabelledSend(id.encode(), scope, send, self.answered, scope.get("toolgate.connection"))

    def _find_refusal(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        """Return the status and the sentence that refuse a request with these headers, or None."""
        if not self._behind_proxy and _is_proxied(headers):
            return 403, NO_PROXY
        if scope["path"] in PROBES:
            return None
        host = headers.get(b"host", b"")
        if host not in self._known_hosts and not self._is_allowed_host(host):
            return 421, "this server does not serve this Host; the operator can allow it with --allowed-hosts"
        origin = headers.get(b"origin")
        if origin is not None and scope["path"] not in self._shared and not self._is_allowed_origin(origin):
            return 403, "this Origin may not call this server; the operator can allow it with --allowed-origins"
        return None

    def _proxy_id(self, scope: Scope) -> str:
        """Return the id from a trusted proxy, or "" if there is none or it is unfit for a log."""
        if self._trusts is None or not self._trusts((scope.get("client") or ("",))[0]):
            return ""
        ids = [value for name, value in scope["headers"] if name == REQUEST_ID_HEADER]
        return ids[0].decode() if len(ids) == 1 and REQUEST_ID.fullmatch(ids[0]) else ""

    def _is_allowed_host(self, host: bytes) -> bool:
        text = host.decode("latin-1").lower()
        name = text.rpartition(":")[0] if _has_port(text) else text
        is_allowed = text in self._hosts or name in self._hosts or (self._loopback and name in LOOPBACK)
        if is_allowed and len(self._known_hosts) < MAX_KNOWN_HOSTS:
            self._known_hosts.add(host)
        return is_allowed

    def _is_allowed_origin(self, origin: bytes) -> bool:
        text = origin.decode("latin-1").lower()
        if text in self._origins:
            return True
        scheme, separator, rest = text.partition("://")
        name = rest.rpartition(":")[0] if _has_port(rest) else rest
        return bool(separator) and self._loopback and scheme in ("http", "https") and name in LOOPBACK


class LabelledSend(msgspec.Struct, eq=False):
    """Sends the answer to one request with the request's id and `extra` headers, and counts it by its status."""

    _id: bytes
    _scope: Scope
    _send: Send
    _answered: dict[int, int]
    _connection: Any  # None under another server
    extra: HeaderLines = []

    def __call__(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self._count(message["status"])
            message["headers"] = [*message.get("headers", ()), (REQUEST_ID_HEADER, self._id), *self.extra]
            if self._connection is not None:
                self._connection.join_head()
        return self._send(message)

    def send_whole(self, status: int, lines: bytes, body: bytes) -> bool:
        if self._connection is None or self.extra:
            return False
        is_sent: bool = self._connection.send_whole(self._scope, status, lines, self._id, body)
        if is_sent:
            self._count(status)
        return is_sent

    def _count(self, status: int) -> None:
        self._answered[status] = self._answered.get(status, 0) + 1


def _merge_headers(lines: list[tuple[bytes, bytes]]) -> Headers | None:
    """Return the headers by name, or None if two lines of a single-valued one differ: a proxy may use the other."""
    headers: Headers = dict(lines)
    if len(headers) == len(lines):
        return headers
    headers = {}
    for name, value in lines:
        if headers.setdefault(name, value) != value:
            if name not in REPEATABLE_HEADERS:
                return None
            headers[name] += (b"; " if name == b"cookie" else b", ") + value  # RFC 9113 section 8.2.3
    return headers


def _may_be_large(headers: Headers | None) -> bool:
    """Return whether the body may have 10,000 bytes or more."""
    return headers is None or len(headers.get(b"content-length", b"")) > 4 or b"transfer-encoding" in headers


def _is_proxied(headers: Headers) -> bool:
    return not PROXIED.isdisjoint(headers) or b"\nx-forwarded-" in b"\n".join((b"", *headers))  # faster than a loop


def _has_port(host: str) -> bool:
    return host.rpartition(":")[2].isdigit() and not host.endswith("]")


class BodyDrain:
    """Reads large bodies to their end before the answer, at most MAX_DRAINS at once."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(MAX_DRAINS)

    def wrap(self, headers: Headers, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """Return `receive` and `send` for one request with these headers, unchanged if its body is small."""
        length = headers.get(b"content-length", b"")
        is_long = len(length) > 4 and length.isdigit() and int(length[:19]) > SMALL
        if not is_long and b"transfer-encoding" not in headers:
            return receive, send
        body = _DrainedBody(receive, send, self._room, waits=_waits_for_continue(headers))
        return body.receive, body.send


class _DrainedBody:
    """A request's body; `waits`: its client sends it only after a 100 Continue."""

    def __init__(self, receive: Receive, send: Send, room: asyncio.Semaphore, *, waits: bool) -> None:
        self._receive = receive
        self._send = send
        self._room = room
        self._waits = waits
        self._more = True

    async def receive(self) -> Message:
        self._waits = False
        message = await self._receive()
        self._more = message["type"] == "http.request" and bool(message.get("more_body"))
        return message

    async def send(self, message: Message) -> None:
        is_coming = self._more and not self._waits and message.get("status") != TOO_SLOW
        if is_coming and not self._room.locked():
            async with self._room:
                await self._read_on()
        self._more = False
        await self._send(message)

    async def _read_on(self) -> None:
        size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_TIME):
                while self._more and size < MAX_DRAINED:
                    async with asyncio.timeout(QUIET_TIME):
                        size += len((await self.receive()).get("body", b""))


def _waits_for_continue(headers: Headers) -> bool:
    """Return whether the client waits for a 100 Continue."""
    return b"expect" in headers and FORWARDED.isdisjoint(headers)
