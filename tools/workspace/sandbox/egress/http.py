"""Speak HTTP/1.1 between a proxy and its client, by h11.

A connection serves one request and closes after the answer, so a server's surplus bytes can't become another answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol
from urllib.parse import urlsplit

import h11
import msgspec

CHUNK = 2**16
MAX_HEAD = 2**17  # bytes; Chromium sends as much as servers accept, cookies included
EVENTS = 16  # header fields or body pieces, maybe of one byte, before other connections get a turn
MAX_REQUESTS = 4  # on one connection before one is answered: the first lacks credentials
MAX_REASON = 240  # characters of a status line, which is all that most clients show of a refused CONNECT
REASONS = {400: "Bad Request", 403: "Refused", 407: "Proxy Authentication Required", 502: "Bad Gateway"}
# Headers for the next hop only (RFC 9110, 7.6.1), or that would bypass the proxy.
HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade expect alt-svc".split()
)

Headers = list[tuple[bytes, bytes]]
Count = Callable[[int], None]
OnEvents = Callable[[int], Awaitable[None]]


def ignore_size(size: int) -> None:
    """Count nothing."""


async def yield_to_loop(events: int) -> None:
    """Yield to other connections."""
    await asyncio.sleep(0)


class ByteReader(Protocol):
    """A source of bytes: read up to that many, b"" at the end; raises OSError. A StreamReader is one."""

    async def read(self, most: int, /) -> bytes: ...


class BadProxyRequestError(Exception):
    """The request is not one that a proxy can answer. It can be refused."""


class ProxyRequest(msgspec.Struct, frozen=True):
    """A proxy request. `host` is without brackets, `target` as the server gets it, `credentials` the header or ""."""

    head: h11.Request
    host: str
    port: int
    target: str
    is_tunnel: bool
    credentials: str


class ProxyConnection:
    """One connection of a client. A head of either side has at most `max_head` bytes. `on_events` is awaited regularly
    with the number of events since: each costs some 50 µs, and one read can hold many."""

    def __init__(
        self,
        reader: ByteReader,
        writer: asyncio.StreamWriter,
        max_head: int = MAX_HEAD,
        on_events: OnEvents = yield_to_loop,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._max_head = max_head
        self._on_events = on_events
        self._events = 0
        self._state = h11.Connection(h11.SERVER, max_incomplete_event_size=max_head)
        self._requests = 0
        self._is_head = False

    async def read_request(self) -> ProxyRequest:
        """Return the head of the next request. Raises BadProxyRequestError and EOFError."""
        self._requests += 1
        if self._requests > MAX_REQUESTS:
            raise BadProxyRequestError
        event = await self._next_event()
        if not isinstance(event, h11.Request):
            raise EOFError
        self._is_head = event.method == b"HEAD"
        await self._count_events(len(event.headers))
        try:
            return _parse_request(event)
        except ValueError:  # UnicodeError is one
            raise BadProxyRequestError from None

    async def refuse(self, status: int, why: str = "") -> None:
        """Answer with a status and the reason. After 407 the connection accepts another request."""
        again = status == 407 and self._requests < MAX_REQUESTS
        why = "".join(char if " " <= char <= "~" else "?" for char in why)  # the reason may quote the request
        body = f"{why}\n".encode() if why else b""
        headers = [("content-length", str(len(body))), *([] if again else [("connection", "close")])]
        if body:
            headers.append(("content-type", "text/plain"))
        if status == 407:
            headers.append(("proxy-authenticate", 'Basic realm="page"'))
        if again:
            while self._state.their_state is h11.SEND_BODY:
                await self._next_event()
        reason = (why or REASONS[status])[:MAX_REASON].encode()
        self._send(h11.Response(status_code=status, headers=headers, reason=reason))
        if body and not self._is_head:
            self._send(h11.Data(data=body))
        self._send(h11.EndOfMessage())
        await self._writer.drain()
        if again:
            try:
                self._state.start_next_cycle()
            except h11.ProtocolError:
                raise BadProxyRequestError from None

    async def tunnel(self, reader: ByteReader, writer: asyncio.StreamWriter, count: Count = ignore_size) -> None:
        """Copy bytes both ways until either side ends or `count` ends both."""
        self._send(h11.Response(status_code=200, headers=[], reason=b"Connected"))
        early, _ = self._state.trailing_data
        _write(writer, early)
        async with asyncio.TaskGroup() as group:
            back = group.create_task(_relay(reader, self._writer, count))
            forth = group.create_task(_relay(self._reader, writer, count))
            back.add_done_callback(lambda _: forth.cancel())  # the server closed: it reads no more

    async def forward(
        self, request: ProxyRequest, reader: ByteReader, writer: asyncio.StreamWriter, count: Count = ignore_size
    ) -> None:
        """Send the request to the server, and its answer back."""
        theirs = h11.Connection(h11.CLIENT, max_incomplete_event_size=self._max_head)
        try:
            head = h11.Request(method=request.head.method, target=request.target, headers=_request_headers(request))
            _write(writer, theirs.send(head))
            if self._state.they_are_waiting_for_100_continue:
                self._send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
            while (event := await self._next_event()) is not None:
                if isinstance(event, h11.Data):
                    count(len(event.data))
                if isinstance(event, h11.Data | h11.EndOfMessage):
                    _write(writer, theirs.send(event))
                    await writer.drain()
                if isinstance(event, h11.EndOfMessage):
                    break
                await self._count_events(1)
            await self._answer(theirs, reader, count)
        except (h11.ProtocolError, OSError):
            if self._state.our_state is not h11.SEND_RESPONSE:
                self._writer.transport.abort()  # so that the client sees a broken answer, not a complete one
                return
            await self.refuse(502)

    async def _answer(self, theirs: h11.Connection, reader: ByteReader, count: Count) -> None:
        while True:
            event = theirs.next_event()
            await self._count_events(len(event.headers) if isinstance(event, h11.Response) else 1)
            if event is h11.NEED_DATA:
                data = await reader.read(CHUNK)
                count(len(data))
                theirs.receive_data(data)
            elif isinstance(event, h11.Response):
                status = 502 if event.status_code == 407 else event.status_code  # only we may ask for credentials
                headers = [*_end_to_end_headers(event.headers), (b"connection", b"close")]
                self._send(h11.Response(status_code=status, headers=headers, reason=event.reason))
            elif isinstance(event, h11.Data):
                self._send(event)
                await self._writer.drain()
            elif isinstance(event, h11.EndOfMessage):
                self._send(h11.EndOfMessage())
                await self._writer.drain()
                return
            elif not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("no answer")

    async def _count_events(self, events: int) -> None:
        self._events += events
        if self._events >= EVENTS:
            events, self._events = self._events, 0
            await self._on_events(events)

    def _send(self, event: h11.Event) -> None:
        _write(self._writer, self._state.send(event))

    async def _next_event(self) -> h11.Event | None:
        """Return the client's next event, or None at the end."""
        while True:
            try:
                event = self._state.next_event()
            except h11.ProtocolError:
                raise BadProxyRequestError from None
            if event is h11.NEED_DATA:
                self._state.receive_data(await self._reader.read(CHUNK))
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                return None
            else:
                assert isinstance(event, h11.Event)
                return event


def _parse_request(request: h11.Request) -> ProxyRequest:
    """Return the parsed request. Raises ValueError for one that is not for a proxy."""
    target = request.target.decode("ascii")
    given = dict(request.headers)
    credentials = given.get(b"proxy-authorization", b"").decode("latin-1")
    is_tunnel = request.method == b"CONNECT"
    parts = urlsplit(f"//{target}" if is_tunnel else target)
    if parts.hostname is None or (not is_tunnel and parts.scheme != "http") or "@" in parts.netloc:
        raise ValueError
    path = (parts.path or "/") + (f"?{parts.query}" if "?" in target else "")
    return ProxyRequest(request, parts.hostname, parts.port or 80, path, is_tunnel, credentials)


def _request_headers(request: ProxyRequest) -> Headers:
    headers = [*_end_to_end_headers(request.head.headers), (b"connection", b"close")]
    if any(name == b"transfer-encoding" for name, _ in request.head.headers):
        headers.append((b"transfer-encoding", b"chunked"))
    return headers


def _end_to_end_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers to pass on. A length beside chunks is dropped (RFC 9112, 6.3)."""
    rows = list(headers)
    dropped = HOP_BY_HOP | {b"content-length"} if any(name == b"transfer-encoding" for name, _ in rows) else HOP_BY_HOP
    return [(name, value) for name, value in rows if name not in dropped]


def _write(writer: asyncio.StreamWriter, data: bytes | None) -> None:
    """Write the data. Raises ConnectionResetError on a closed transport, where uvloop raises RuntimeError."""
    if writer.is_closing():
        raise ConnectionResetError
    writer.write(data or b"")


async def _relay(reader: ByteReader, writer: asyncio.StreamWriter, count: Count) -> None:
    try:
        while data := await reader.read(CHUNK):
            if writer.is_closing():
                return
            count(len(data))
            writer.write(data)
            await writer.drain()
        if not writer.is_closing() and writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.transport.abort()
