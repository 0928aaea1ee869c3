"""Connect to Redis or Valkey by its URL with the client library, and say in words why it can't be used.

The URL is a secret: errors and logs name the address alone.
"""

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncGenerator
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from toolgate.server.base.bus.bus import BusUnreachableError
from toolgate.server.features.replicas.redis_url import RedisUrl

Reply = Any  # bytes, int, bool, None, or a list of these

__all__ = ["AbstractConnection", "PubSub", "ReadOnlyError", "Redis", "RedisServer", "Reply", "ResponseError"]


class RedisServer:
    """One Redis server. `name` is for people: its address without secrets. Raises ValueError for an invalid URL."""

    def __init__(self, url: RedisUrl) -> None:
        self.name = url.address
        self._url = url.secret
        try:
            self._create_client(0)
        except (ValueError, RedisError, TypeError):
            raise ValueError("the URL of Redis is invalid") from None  # the library's text repeats parts of it

    @contextlib.asynccontextmanager
    async def connect(self, seconds: float) -> AsyncGenerator[Redis]:
        """Yield a client that has connected, signed in and had a reply: a stopped server accepts connections, too.

        Raises BusUnreachableError."""
        client = self._create_client(seconds)
        try:
            try:
                async with asyncio.timeout(seconds):
                    await client.ping()
            except Exception as error:  # noqa: BLE001  # of the library, of TLS, or of a reply that is none
                raise self.unreachable(error, seconds) from None
            yield client
        finally:
            with contextlib.suppress(RedisError, OSError):
                await client.aclose()

    def unreachable(self, error: BaseException | None, seconds: float = 0.0) -> BusUnreachableError:
        """Return the error that says why Redis can't be used."""
        if isinstance(error, BusUnreachableError):
            return BusUnreachableError(str(error))
        return BusUnreachableError(f"Redis at {self.name} {_describe(error, seconds)}")

    def _create_client(self, seconds: float) -> Redis:
        """Return a client that never repeats a command: it may have been carried out."""
        return Redis.from_url(
            self._url,
            protocol=2,
            retry=Retry(NoBackoff(), 0, supported_errors=()),
            socket_timeout=None,
            socket_connect_timeout=seconds,
        )


def _describe(error: BaseException | None, seconds: float) -> str:
    """Return what completes "Redis at … "; what the library says may hold secrets."""
    match error:
        case TimeoutError() | RedisTimeoutError():
            return f"does not answer within {seconds:g} s"
        case AuthenticationError():
            return "refuses the user or the password"
        case BusyLoadingError():
            return "is loading its data"
        case ReadOnlyError():
            return "is a copy that can't be written"
        case ResponseError():
            text = f"{error.status_code} {error}" if error.status_code else str(error)
            return f"refuses a command: {text.partition(', with args')[0][:200]}"  # the arguments may be secret
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
