"""How fast an outlet is used, so that who pushes gigabytes through it leaves the event loop to others. Knows bytes and
time; knows nothing of what the bytes are.

What is read is charged, a small piece as PIECE bytes: each read costs the loop some 50 µs, however little comes. Who
read waits before the next read until the account allows it, and meanwhile nothing is read from the kernel either, so
that the sender is slowed down.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

RATE = 32 * 2**20  # bytes a second of one outlet, both ways together
PIECE = 2**14  # bytes that a read counts at least: 2,048 reads a second
BURST = 0.25  # seconds whose bytes may come at once after a rest
DEBT = 1.0  # seconds by which the first reads of many connections may get ahead
RECENT = 1.0  # seconds for which an outlet counts as busy
MOST = 2**20  # bytes; more than a StreamReader ever holds, so that a read empties it


class ByteRateLimiter:
    """The account of one outlet. `rate` says how many bytes a second it may have now."""

    def __init__(self, rate: Callable[[], float]) -> None:
        self._rate = rate
        self._due = 0.0
        self._turns = asyncio.Lock()

    def charge(self, size: int) -> float:
        """When whoever caused it may go on, by the monotonic clock."""
        self._due = max(self._due, time.monotonic() - BURST) + max(size, PIECE) / self._rate()
        return self._due

    @staticmethod
    async def wait_until(due: float) -> None:
        """Wait for what `charge` gave; at least, let others have their turn."""
        await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def wait_turn(self) -> None:
        """Wait for one's own pass of the loop: what 256 connections bring at once is not to be parsed in one."""
        async with self._turns:
            await self.wait_until(self._due - DEBT)

    def is_busy(self, now: float) -> bool:
        return self._due > now - RECENT


class RateLimitedReader:
    """The reading side of a connection. `moved` is called whenever something came."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        rate: ByteRateLimiter,
        on_data: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._transport: asyncio.Transport = writer.transport  # type: ignore[assignment]  # reads too, it is a socket's
        self._pace = rate
        self._moved = on_data
        self._due = 0.0
        self._unread = b""
        self._halt()

    async def read(self, most: int) -> bytes:
        """Up to `most` bytes, b"" at the end. Raises OSError."""
        await self._pace.wait_until(self._due)
        data = self._unread or await self._read_available()
        await self._pace.wait_turn()
        piece, self._unread = data[:most], data[most:]
        self._due = self._pace.charge(len(piece))
        self._moved()
        return piece

    async def _read_available(self) -> bytes:
        """What the kernel has, read only now: else a reader takes what comes, a byte at a time if it comes so."""
        with contextlib.suppress(RuntimeError):  # the connection has ended, as the read will say
            self._transport.resume_reading()
        try:
            return await self._reader.read(MOST)
        finally:
            self._halt()

    def _halt(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._transport.pause_reading()
