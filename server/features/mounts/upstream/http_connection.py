"""Send requests on one HTTP/1.1 connection, one after another, and read their responses as they come."""

import asyncio
import select
import ssl
from collections.abc import AsyncGenerator, Iterable
from typing import cast

from toolgate.server.base.http.head import END, HttpError, find_control
from toolgate.server.features.mounts.upstream.errors import MountError
from toolgate.server.features.mounts.upstream.http_messages import (
    ResponseHead,
    encode_request,
    is_response,
    parse_response,
)

CONNECT_TIMEOUT = 10.0  # seconds
WRITE_TIMEOUT = 30.0  # for the server to take a long request
MAX_HEAD = 100 * 1024  # bytes of all heads of a response
MAX_RECEIVED = 128 * 1024  # bytes that wait to be read: a head fits in
CHUNK = 16 * 1024  # of a body: then other tasks run, since whoever reads it may work for each byte
BROKEN = "the connection broke before the answer came"


async def open_connection(host: str, port: int, tls: ssl.SSLContext | None) -> "UpstreamConnection":
    """Return a connection. Raises MountError: CONNECT_FAILED."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            _, connection = await loop.create_connection(lambda: UpstreamConnection(loop), host, port, ssl=tls)
    except TimeoutError:
        raise MountError("CONNECT_FAILED", "no connection to it: no answer in time") from None
    except (OSError, UnicodeError) as error:  # UnicodeError: of a host that is no name
        from toolgate.tools.api.outbound.vetted_client import describe_error  # it loads more than is needed to connect

        raise MountError("CONNECT_FAILED", f"no connection to it: {describe_error(error)}") from None
    return connection


class UpstreamConnection(asyncio.Protocol):
    """One connection. Whoever has taken it makes one request, and reads its response to the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watch = select.poll()
        self._received = bytearray()
        self._is_free = True  # no request is under way
        self._is_paused = False  # whether more is waiting at the socket
        self._is_over = False  # whether nothing comes any more
        self._error: Exception | None = None
        self._news: asyncio.Future[None] | None = None  # done when something has come, or nothing does any more
        self._stuck: asyncio.TimerHandle | None = None  # until the server takes what is sent
        self._head: ResponseHead

    # -- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._watch.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

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
        self._error = self._error or exc
        self.resume_writing()
        self._tell()

    def pause_writing(self) -> None:
        self._stuck = self._loop.call_later(WRITE_TIMEOUT, self._give_up)

    def resume_writing(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    # -- what others do with it

    @property
    def is_idle(self) -> bool:
        """Whether another request can be made: the last one is sent, its response has ended, and nothing came after."""
        return self._is_free and not (self._is_over or self._received or self._stuck)

    def is_quiet(self) -> bool:
        """Return whether it is idle still: nothing waits at its socket that the loop has not read, such as its end."""
        return self.is_idle and not self._watch.poll(0)

    async def request(self, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes) -> ResponseHead:
        """Send a request, and return the head of its response. Raises MountError."""
        try:
            data = encode_request(method, target, headers, body)
        except ValueError:
            raise MountError("CONNECT_FAILED", "its headers have characters that HTTP does not allow") from None
        if self._transport.is_closing():  # uvloop's may raise then
            raise MountError("CONNECT_FAILED", "it closed the connection before it was asked")
        self._is_free = False
        self._transport.write(data)
        try:
            self._head = await self._read_head()
        except HttpError as error:
            raise MountError("CONNECTION_LOST", f"its response can't be read: {error}") from None
        return self._head

    async def read_body(self) -> AsyncGenerator[bytes, None]:
        """Yield the body of the response as it comes. Raises MountError."""
        decoder = self._head.create_decoder()
        try:
            while not decoder.is_complete:
                if decoder.is_paused:
                    await asyncio.sleep(0)
                    data = b""
                elif not (data := await self._read()):
                    if self._head.is_sized:
                        raise MountError("CONNECTION_LOST", BROKEN)
                    return
                if content := decoder.decode(data):
                    yield content
        except HttpError as error:
            raise MountError("CONNECTION_LOST", f"its response can't be read: {error}") from None
        self._is_free = self._head.persists and not decoder.rest

    def close(self) -> None:
        """Close it at once: what waits to be sent is of no use any more."""
        self._transport.abort()

    async def _read_head(self) -> ResponseHead:
        """Return the head that answers the request. Raises HttpError, MountError."""
        left, scanned = MAX_HEAD, 0
        while True:
            end = self._received.find(END, max(0, scanned - len(END) + 1))
            before, scanned = scanned, len(self._received)
            if (scanned if end < 0 else end) > left:
                raise HttpError(502, f"its head has more than {MAX_HEAD} bytes")
            if end < 0:
                if not is_response(self._received):
                    raise HttpError(502, "it is no HTTP/1.1")
                if find_control(self._received, 0, before):  # such as the end of a line of others: no end may come
                    raise HttpError(502, "its head is malformed")
                if self._is_over:
                    raise MountError("CONNECTION_LOST", BROKEN)
                await self._wait()
                continue
            head = parse_response(self._take(end + len(END)))
            if not head.is_interim:
                return head
            left, scanned = left - end, 0

    async def _read(self) -> bytes:
        """Return what has come, and b"" at the end. Raises MountError."""
        while not self._received and not self._is_over:
            await self._wait()
        if not self._received and self._error is not None:
            raise MountError("CONNECTION_LOST", BROKEN)
        data = self._take(CHUNK)
        if self._received:
            await asyncio.sleep(0)
        return data

    async def _wait(self) -> None:
        """Wait until something comes, or nothing does any more."""
        self._news = self._loop.create_future()
        await self._news

    def _take(self, size: int) -> bytes:
        data = bytes(self._received[:size])
        del self._received[:size]
        if self._is_paused and not self._received and not self._is_over:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    def _give_up(self) -> None:
        """End a connection whose server takes nothing."""
        self._error = TimeoutError()
        self._transport.abort()

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
