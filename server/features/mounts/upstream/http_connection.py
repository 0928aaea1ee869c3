"""Send requests on one HTTP/1.1 connection, one after another, with h11 (RFC 9112)."""

import asyncio
import select
import ssl
from collections.abc import AsyncGenerator
from typing import cast

import h11

from toolgate.server.features.mounts.upstream.errors import MountError

CONNECT_TIMEOUT = 10.0  # seconds
WRITE_TIMEOUT = 30.0
MAX_HEAD = 100 * 1024  # bytes of the head of a response
MAX_RECEIVED = 64 * 1024  # bytes that wait to be read
CHUNK = 16 * 1024
YIELD_AFTER = 64  # events
BROKEN = "the connection broke before the answer came"


async def open_connection(host: str, port: int, tls: ssl.SSLContext | None) -> "UpstreamConnection":
    """Return a connection. Raises MountError: CONNECT_FAILED."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            _, connection = await loop.create_connection(UpstreamConnection, host, port, ssl=tls)
    except TimeoutError:
        raise MountError("CONNECT_FAILED", "no connection to it: no answer in time") from None
    except (OSError, UnicodeError) as error:  # UnicodeError: of a host that is no name
        from toolgate.tools.reading.web.vetted_client import describe_error  # it loads more than is needed to connect

        raise MountError("CONNECT_FAILED", f"no connection to it: {describe_error(error)}") from None
    return connection


class UpstreamConnection(asyncio.Protocol):
    """One connection. Whoever has taken it makes one request, and reads its response to the end."""

    def __init__(self) -> None:
        self._state = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        self._received = bytearray()
        self._is_paused = False  # whether more is waiting at the socket
        self._is_over = False  # whether nothing comes any more
        self._error: Exception | None = None
        self._news: asyncio.Future[None] | None = None  # done when something has come, or nothing does any more
        self._writable = asyncio.Event()
        self._writable.set()
        self._events = 0

    # -- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > MAX_RECEIVED and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._tell()

    def eof_received(self) -> None:
        self._is_over = True
        self._tell()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._error = exc
        self._writable.set()
        self._tell()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # -- what others do with it

    @property
    def is_idle(self) -> bool:
        """Whether another request can be made: the last response has ended, and nothing came after it."""
        state = self._state
        if state.our_state is not h11.IDLE or state.their_state is not h11.IDLE:
            return False
        return not (self._is_over or self._received or state.trailing_data[0])

    def is_quiet(self) -> bool:
        """Return whether it is idle still: nothing waits at its socket that the loop has not read, such as its end."""
        if not self.is_idle:
            return False
        watch = select.poll()
        watch.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not watch.poll(0)

    async def request(self, method: str, target: str, headers: list[tuple[str, str]], body: bytes) -> h11.Response:
        """Send a request, and return the head of its response. Raises MountError."""
        try:
            data = self._encode(method, target, headers, body)
        except (h11.LocalProtocolError, UnicodeEncodeError):
            raise MountError("CONNECT_FAILED", "its headers have characters that HTTP does not allow") from None
        try:
            self._transport.write(data)
            if not self._writable.is_set():
                async with asyncio.timeout(WRITE_TIMEOUT):
                    await self._writable.wait()
        except OSError:
            raise MountError("CONNECTION_LOST", BROKEN) from None
        while True:
            event = await self._next_event()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise MountError("CONNECTION_LOST", BROKEN)

    async def read_body(self) -> AsyncGenerator[bytes, None]:
        """Yield the body of the response as it comes. Raises MountError."""
        while not isinstance(event := await self._next_event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise MountError("CONNECTION_LOST", BROKEN)
            yield bytes(event.data)
        if self._state.our_state is h11.DONE and self._state.their_state is h11.DONE:
            self._state.start_next_cycle()

    def close(self) -> None:
        """Close it at once: what waits to be sent is of no use any more."""
        self._transport.abort()

    def _encode(self, method: str, target: str, headers: list[tuple[str, str]], body: bytes) -> bytes:
        send = self._state.send
        head = send(h11.Request(method=method, target=target, headers=headers))
        parts = (head, send(h11.Data(data=body)) if body else None, send(h11.EndOfMessage()))
        return b"".join(part for part in parts if part)

    async def _next_event(self) -> object:
        try:
            while (event := self._state.next_event()) is h11.NEED_DATA:
                self._state.receive_data(await self._read())
            self._events += 1
            if self._events % YIELD_AFTER == 0:  # a server of tiny chunks must not keep other tasks from running
                await asyncio.sleep(0)
        except (h11.RemoteProtocolError, OSError):
            raise MountError("CONNECTION_LOST", BROKEN) from None
        return event

    async def _read(self) -> bytes:
        """Return what has come, and b"" at the end. Raises OSError."""
        while not self._received and not self._is_over:
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        if not self._received and self._error is not None:
            raise ConnectionResetError from self._error
        data = bytes(self._received[:CHUNK])
        del self._received[:CHUNK]
        if self._is_paused and not self._received:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
