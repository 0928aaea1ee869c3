"""Read from a connection no faster than its account allows."""

import asyncio
import contextlib
from collections.abc import Callable

from toolgate.tools.rate_limiter import ByteRateLimiter

MAX_READ = 2**20  # bytes; more than a StreamReader ever holds, so that a read empties it


class RateLimitedReader:
    """The reading side of a connection. `on_data` is called whenever something came."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        rate: ByteRateLimiter,
        on_data: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._transport: asyncio.Transport = writer.transport  # type: ignore[assignment]  # reads too, it is a socket's
        self._rate = rate
        self._moved = on_data
        self._due = 0.0
        self._unread = b""
        self._halt()

    async def read(self, most: int) -> bytes:
        """Up to `most` bytes, b"" at the end. Raises OSError."""
        await self._rate.wait_until(self._due)
        data = self._unread or await self._read_available()
        await self._rate.wait_turn()
        piece, self._unread = data[:most], data[most:]
        self._due = self._rate.charge(len(piece))
        self._moved()
        return piece

    async def _read_available(self) -> bytes:
        """What the kernel has, read only now: else a reader takes what comes, a byte at a time if it comes so."""
        with contextlib.suppress(RuntimeError):  # the connection has ended, as the read will say
            self._transport.resume_reading()
        try:
            return await self._reader.read(MAX_READ)
        finally:
            self._halt()

    def _halt(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._transport.pause_reading()
