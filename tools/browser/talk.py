"""What a proxy and a browser say to each other, HTTP/1.1, by h11. Knows nothing of who may ask for what.

A connection is asked for one thing at most: after an answer it is closed, so that nothing a server sends too much can
be taken for the answer to another request.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

CHUNK = 2**16
MAX_HEAD = 2**17  # bytes; Chromium sends what a server accepts, cookies of a page included
MAX_QUESTIONS = 4  # on one connection before one is answered: the first lacks the credentials
REASONS = {403: b"Refused", 407: b"Proxy Authentication Required", 502: b"Bad Gateway"}
# What is between two neighbours only (RFC 9110, 7.6.1), or would lead round the proxy.
OURS = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"alt-svc",
    )
)

Headers = list[tuple[bytes, bytes]]
Count = Callable[[int], None]


class Nonsense(Exception):
    """What came is no request that a proxy could answer."""


@dataclass(frozen=True, slots=True)
class Asked:
    """`host` without brackets; `target` as the server is to see it; `credentials` the header as it came, or ""."""

    request: h11.Request
    host: str
    port: int
    target: str
    is_tunnel: bool
    credentials: str


class Talk:
    """One connection of the browser's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._state = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._questions = 0

    async def asked(self) -> Asked:
        """The next request's head. Raises Nonsense and EOFError."""
        self._questions += 1
        if self._questions > MAX_QUESTIONS:
            raise Nonsense
        event = await self._event()
        if not isinstance(event, h11.Request):
            raise EOFError
        try:
            return _asked(event)
        except (ValueError, UnicodeError):
            await self.refuse(502)
            raise Nonsense from None

    async def refuse(self, status: int) -> None:
        """Answer with no more than a status, and be ready for another try at 407."""
        again = status == 407 and self._questions < MAX_QUESTIONS
        headers = [("content-length", "0"), *([] if again else [("connection", "close")])]
        if status == 407:
            headers.append(("proxy-authenticate", 'Basic realm="page"'))
        if again:
            while self._state.their_state is h11.SEND_BODY:
                await self._event()
        self._send(h11.Response(status_code=status, headers=headers, reason=REASONS[status]))
        self._send(h11.EndOfMessage())
        await self._writer.drain()
        if again:
            try:
                self._state.start_next_cycle()
            except h11.ProtocolError:
                raise Nonsense from None

    async def tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Count) -> None:
        """Bytes both ways, until either side ends or `count` ends both."""
        self._send(h11.Response(status_code=200, headers=[], reason=b"Connected"))
        early, _ = self._state.trailing_data
        writer.write(early)
        async with asyncio.TaskGroup() as group:
            back = group.create_task(_relay(reader, self._writer, count))
            forth = group.create_task(_relay(self._reader, writer, count))
            back.add_done_callback(lambda _: forth.cancel())  # a server that is done has no use for more

    async def forward(
        self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Count
    ) -> None:
        """The request to the server and its answer back."""
        theirs = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        try:
            head = h11.Request(method=asked.request.method, target=asked.target, headers=_request_headers(asked))
            writer.write(theirs.send(head) or b"")
            while (event := await self._event()) is not None:
                if isinstance(event, h11.Data):
                    count(len(event.data))
                if isinstance(event, h11.Data | h11.EndOfMessage):
                    writer.write(theirs.send(event) or b"")
                    await writer.drain()
                if isinstance(event, h11.EndOfMessage):
                    break
            await self._answer(theirs, reader, count)
        except (h11.ProtocolError, OSError):
            if self._state.our_state is not h11.SEND_RESPONSE:
                self._writer.transport.abort()  # an end that can't be taken for the answer's
                return
            await self.refuse(502)

    async def _answer(self, theirs: h11.Connection, reader: asyncio.StreamReader, count: Count) -> None:
        while True:
            event = theirs.next_event()
            if event is h11.NEED_DATA:
                data = await reader.read(CHUNK)
                count(len(data))
                theirs.receive_data(data)
            elif isinstance(event, h11.Response):
                status = 502 if event.status_code == 407 else event.status_code  # only we may ask for the credentials
                headers = [*_kept(event.headers), (b"connection", b"close")]
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

    def _send(self, event: h11.Event) -> None:
        self._writer.write(self._state.send(event) or b"")

    async def _event(self) -> h11.Event | None:
        """The next of the browser's; None at the end."""
        while True:
            try:
                event = self._state.next_event()
            except h11.ProtocolError:
                raise Nonsense from None
            if event is h11.NEED_DATA:
                self._state.receive_data(await self._reader.read(CHUNK))
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                return None
            else:
                assert isinstance(event, h11.Event)
                return event


def _asked(request: h11.Request) -> Asked:
    """Raises ValueError for what is no request to a proxy."""
    target = request.target.decode("ascii")
    given = dict(request.headers)
    credentials = given.get(b"proxy-authorization", b"").decode("latin-1")
    is_tunnel = request.method == b"CONNECT"
    parts = urlsplit(f"//{target}" if is_tunnel else target)
    if parts.hostname is None or (not is_tunnel and parts.scheme != "http") or "@" in parts.netloc:
        raise ValueError
    path = (parts.path or "/") + (f"?{parts.query}" if "?" in target else "")
    return Asked(request, parts.hostname, parts.port or 80, path, is_tunnel, credentials)


def _request_headers(asked: Asked) -> Headers:
    headers = [*_kept(asked.request.headers), (b"connection", b"close")]
    if any(name == b"transfer-encoding" for name, _ in asked.request.headers):
        headers.append((b"transfer-encoding", b"chunked"))
    return headers


def _kept(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    return [(name, value) for name, value in headers if name not in OURS]


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Count) -> None:
    try:
        while data := await reader.read(CHUNK):
            count(len(data))
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.transport.abort()
