"""Send requests on one HTTP/1.1 connection, one after another: h11 over the streams of asyncio (RFC 9112)."""

import asyncio
import ssl
from collections.abc import AsyncGenerator

import h11

from toolgate.server.features.mounts.upstream.errors import MountError

CONNECT_TIMEOUT = 10.0  # seconds
WRITE_TIMEOUT = 30.0
MAX_HEAD = 100 * 1024  # bytes of the head of a response
CHUNK = 16 * 1024
YIELD_AFTER = 64  # events
BROKEN = "the connection broke before the answer came"


async def open_connection(host: str, port: int, tls: ssl.SSLContext | None) -> "UpstreamConnection":
    """Return a connection. Raises MountError: CONNECT_FAILED."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    except TimeoutError:
        raise MountError("CONNECT_FAILED", "no connection to it: no answer in time") from None
    except (OSError, UnicodeError) as error:  # UnicodeError: of a host that is no name
        from toolgate.tools.reading.web.vetted_client import describe_error  # it loads more than is needed to connect

        raise MountError("CONNECT_FAILED", f"no connection to it: {describe_error(error)}") from None
    return UpstreamConnection(reader, writer)


class UpstreamConnection:
    """One connection. Whoever has taken it makes one request, and reads its response to the end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._state = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        self._watch: asyncio.Task[bytes] | None = None  # while it is idle: what comes then answers nothing
        self._events = 0

    @property
    def is_idle(self) -> bool:
        """Whether another request can be made: the last response has ended, and nothing came after it."""
        state = self._state
        if state.our_state is not h11.IDLE or state.their_state is not h11.IDLE or self._reader.at_eof():
            return False
        return not state.trailing_data[0]

    def rest(self) -> None:
        """Begin to be idle."""
        self._watch = asyncio.get_running_loop().create_task(self._reader.read(1))

    async def wake(self) -> bool:
        """End being idle. Return whether it can be used: nothing has come, and it was not closed."""
        watch, self._watch = self._watch, None
        if watch is None or watch.done():
            return False
        watch.cancel()
        await asyncio.wait([watch])
        return watch.cancelled() and self.is_idle

    async def request(self, method: str, target: str, headers: list[tuple[str, str]], body: bytes) -> h11.Response:
        """Send a request, and return the head of its response. Raises MountError."""
        try:
            data = self._encode(method, target, headers, body)
        except (h11.LocalProtocolError, UnicodeEncodeError):
            raise MountError("CONNECT_FAILED", "its headers have characters that HTTP does not allow") from None
        try:
            self._writer.write(data)
            if self._writer.transport.get_write_buffer_size():
                async with asyncio.timeout(WRITE_TIMEOUT):
                    await self._writer.drain()
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
        if self._watch is not None:
            self._watch.cancel()
        self._writer.transport.abort()

    def _encode(self, method: str, target: str, headers: list[tuple[str, str]], body: bytes) -> bytes:
        send = self._state.send
        head = send(h11.Request(method=method, target=target, headers=headers))
        parts = (head, send(h11.Data(data=body)) if body else None, send(h11.EndOfMessage()))
        return b"".join(part for part in parts if part)

    async def _next_event(self) -> object:
        try:
            while (event := self._state.next_event()) is h11.NEED_DATA:
                self._state.receive_data(await self._reader.read(CHUNK))
            self._events += 1
            if self._events % YIELD_AFTER == 0:  # a server of tiny chunks must not keep other tasks from running
                await asyncio.sleep(0)
        except (h11.RemoteProtocolError, OSError):
            raise MountError("CONNECTION_LOST", BROKEN) from None
        return event
