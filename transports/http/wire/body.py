"""Receive the body of a request in parts, no faster than it is read."""

import asyncio
import contextlib
from collections.abc import Callable

from toolgate.server.base.http.chunks import ChunkDecoder

MAX_UNREAD = 64 * 1024  # bytes that wait for their reader; then reading from the socket stops
MAX_DROPPED = 64 * 2**20  # bytes read and dropped before an answer: four times the largest body
BEGINS_WITHIN = 2.0  # seconds until a body comes that a proxy sends without being asked for it


class BodyTooSlowError(Exception):
    """The body does not arrive in time: 408."""


class ClientDisconnectedError(Exception):
    """The client disconnected before its body was complete."""


class IncomingBody:
    """The part of a request's body that does not come with its head.

    - `length`: bytes to come, or None for a chunked body.
    - `on_read`: called when unread bytes have been taken.
    - `on_first_read`: called once before the first read, for a client that waits for a 100 Continue; else None.
    - `is_forwarded`: it comes through a proxy, which may pass on `Expect` and yet send the body at once, as Caddy does.
    """

    __slots__ = (
        "_chunks",
        "_fault",
        "_is_forwarded",
        "_left",
        "_on_first_read",
        "_on_read",
        "_parts",
        "_waiter",
        "is_complete",
        "is_dropped",
        "received",
        "unread",
    )

    def __init__(
        self,
        length: int | None,
        on_read: Callable[[], None],
        on_first_read: Callable[[], None] | None,
        *,
        is_forwarded: bool,
    ) -> None:
        self.is_complete = False
        self.is_dropped = False  # nobody reads the rest
        self.received = 0  # bytes of content
        self.unread = 0  # bytes
        self._chunks = ChunkDecoder() if length is None else None
        self._is_forwarded = is_forwarded
        self._left = length or 0
        self._on_read = on_read
        self._on_first_read = on_first_read
        self._parts: list[bytes] = []
        self._fault: Callable[[], Exception] | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_paused(self) -> bool:
        """Whether `feed` has kept bytes, and is to be called again with none."""
        return self._chunks is not None and self._chunks.is_paused

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the socket, and return those after the body. Raises HttpError."""
        if self._chunks is None:
            content, rest = data[: self._left], data[self._left :]
            self._left -= len(content)
            self.is_complete = not self._left
        else:
            content, rest = self._chunks.decode(data), b""
            if self._chunks.is_complete:
                self.is_complete, rest = True, self._chunks.rest
        self._add(content)
        return rest

    def fail(self, fault: Callable[[], Exception]) -> None:
        """Let reads raise `fault()`, after what has come."""
        self._fault = self._fault or fault
        self._wake()

    async def read(self) -> tuple[bytes, bool]:
        """Return the next bytes, and whether more follow. Raises BodyTooSlowError, ClientDisconnectedError."""
        if self._on_first_read is not None:
            self._on_first_read()
            self._on_first_read = None
        while not (self._parts or self.is_complete or self._fault):
            await self._wait()
        if self._fault is not None and not self.is_complete:
            raise self._fault()
        data = b"".join(self._parts)
        self._parts.clear()
        self.unread = 0
        self._on_read()
        return data, not self.is_complete

    async def drop(self) -> bool:
        """Read and drop the rest. Return whether the body has ended in time and within MAX_DROPPED."""
        self.is_dropped = True
        self._parts.clear()
        self.unread = 0
        self._on_read()
        most = self.received + MAX_DROPPED
        if self._left > MAX_DROPPED or not await self._begins():
            return self.is_complete
        while not (self.is_complete or self._fault or self.received > most):
            await self._wait()
        return self.is_complete

    async def _begins(self) -> bool:
        """Return whether the body comes: a client that waits for a 100 Continue sends none, but a proxy may."""
        if self._is_forwarded:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEGINS_WITHIN):
                    while self._on_first_read is not None and not (self.is_complete or self._fault):
                        await self._wait()
        return self._on_first_read is None

    def _add(self, content: bytes) -> None:
        if content:
            self._on_first_read = None  # the client did not wait
            self.received += len(content)
            if not self.is_dropped:
                self._parts.append(content)
                self.unread += len(content)
        if content or self.is_complete:
            self._wake()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
