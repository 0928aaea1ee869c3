"""Connect to Redis or Valkey by its URL, write commands and read replies (RESP2).

The URL is a secret: errors and logs name the address alone.
"""

import asyncio
import os
import ssl
from collections.abc import Callable

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import AuthenticationError, BusyLoadingError, ReadOnlyError, RedisError

from toolgate.server.base.bus.bus import BusUnreachableError
from toolgate.server.base.bus.redis.reply_parser import INCOMPLETE, RefusedError, Reply, ReplyParser
from toolgate.server.base.bus.redis_url import RedisUrl

CHUNK = 64 * 1024  # bytes read at once
FAILURES = {
    "LOADING": BusyLoadingError,
    "NOAUTH": AuthenticationError,
    "READONLY": ReadOnlyError,  # after a failover: the next connection may lead to the new primary
    "WRONGPASS": AuthenticationError,
}

__all__ = ["RedisConnection", "RedisServer", "RefusedError", "Reply", "ReplyProtocol", "pack"]


class RedisServer:
    """One Redis server. `name` is for people: its address without secrets. Raises ValueError for an invalid URL."""

    def __init__(self, url: RedisUrl) -> None:
        self.name = url.address
        try:
            self._pool = ConnectionPool.from_url(
                url.secret, protocol=2, socket_timeout=None, socket_connect_timeout=None
            )
        except (ValueError, RedisError, TypeError):
            raise ValueError("the URL of Redis is invalid") from None  # the library's text repeats parts of it

    async def connect(self, seconds: float) -> "RedisConnection":
        """Return a new connection that answers commands. Raises BusUnreachableError."""
        connection = RedisConnection(self._pool.make_connection())  # type: ignore[no-untyped-call]  # the library's
        try:
            async with asyncio.timeout(seconds):
                await connection.open()
        except BaseException as error:
            await connection.close()
            if isinstance(error, Exception):
                raise self.unreachable(error, seconds) from None
            raise
        return connection

    def unreachable(self, error: BaseException | None, seconds: float = 0.0) -> BusUnreachableError:
        """Return the error that says why Redis can't be used."""
        if isinstance(error, BusUnreachableError):
            return BusUnreachableError(str(error))
        return BusUnreachableError(f"Redis at {self.name} {_describe(error, seconds)}")


class RedisConnection:
    """An open connection. Either one task writes and one reads, or `receive` takes it over."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self._parser = ReplyParser()

    def receive(self, handle: Callable[[Reply], None], resume: Callable[[], None]) -> "ReplyProtocol":
        """Call `handle` with each reply as it arrives, and `resume` when more can be sent, instead of `read` and
        `write`."""
        writer = self._connection._writer  # pyright: ignore[reportPrivateUsage]
        if writer is None:
            raise ConnectionResetError
        protocol = ReplyProtocol(writer.transport, self._parser, handle, resume)
        writer.transport.set_protocol(protocol)
        return protocol

    async def open(self) -> None:
        """Connect, sign in, and wait for the first reply: a stopped server accepts connections, too."""
        await self._connection.connect()  # type: ignore[no-untyped-call]  # the library's
        await self.write(pack("PING"))
        reply = await self.read()
        if isinstance(reply, Exception):
            raise reply

    async def write(self, data: bytes) -> None:
        """Raises OSError, RedisError."""
        if not self._connection.is_connected:  # the library would connect again, and replies come to other commands
            raise ConnectionError
        await self._connection.send_packed_command(data, check_health=False)

    async def read(self) -> Reply:
        """Return the next reply, which is an exception if it is an error. Raises OSError, RedisError."""
        while (reply := self._parser.take()) is INCOMPLETE:
            reader = self._connection._reader  # pyright: ignore[reportPrivateUsage]  # the library's parser is slow
            chunk = b"" if reader is None else await reader.read(CHUNK)
            if not chunk:
                raise ConnectionResetError
            self._parser.feed(chunk)
        return _check(reply)

    async def close(self) -> None:
        """Close at once, without waiting for what is not sent."""
        await self._connection.disconnect(nowait=True)


class ReplyProtocol(asyncio.Protocol):
    """A connection without a task: replies are handled in the turn in which they arrive, which halves the time of a
    small one. `ended` is done, with the error, when the connection is lost."""

    def __init__(
        self,
        transport: asyncio.WriteTransport,
        parser: ReplyParser,
        handle: Callable[[Reply], None],
        resume: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._parser = parser
        self._handle = handle
        self._resume = resume
        self._is_full = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def can_send(self) -> bool:
        """Return whether to send now. A lost connection has ended before those who wait for it learn of it."""
        return not self._is_full and not self.ended.done()

    def send(self, data: bytes) -> None:
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self.ended.done():
            return
        try:
            self._parser.feed(data)
            while (reply := self._parser.take()) is not INCOMPLETE:
                self._handle(_check(reply))
        except Exception as error:  # noqa: BLE001  # a reply that is none, or says that the connection is of no use
            self.connection_lost(error)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._resume()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(exc or ConnectionResetError())


def pack(*words: str | bytes | int) -> bytes:
    """Return a command as Redis reads it."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def _check(reply: Reply) -> Reply:
    """Return the reply. Raises RedisError if it says that the connection is of no use."""
    if isinstance(reply, RefusedError):
        failure = FAILURES.get(str(reply).partition(" ")[0])
        if failure is not None:
            raise failure(str(reply))
    return reply


def _describe(error: BaseException | None, seconds: float) -> str:
    """Return what completes "Redis at … "; what the library says may hold secrets."""
    match error:
        case TimeoutError():
            return f"does not answer within {seconds:g} s"
        case AuthenticationError():
            return "refuses the user or the password"
        case BusyLoadingError():
            return "is loading its data"
        case ReadOnlyError():
            return "is a copy that can't be written"
        case RefusedError():
            return f"refuses a command: {str(error)[:200]}"
        case _:
            cause = error and (error.__cause__ or error.__context__ or error)
            return f"can't be reached{_describe_cause(cause)}"


def _describe_cause(cause: BaseException | None) -> str:
    match cause:
        case ssl.SSLError():
            return f": TLS fails, {(cause.reason or 'for an unknown reason').lower().replace('_', ' ')}"
        case OSError(errno=int(number)) if number > 0:
            return f": {os.strerror(number).lower()}"
        case OSError(strerror=str(text)):  # a name that is not found
            return f": {text.lower()}"
        case _:
            return ""
