"""Limit the bytes read per second, so that one sender leaves the event loop to others.

A reader charges what it read and waits until its account allows the next read. Meanwhile the kernel buffers, so the
sender waits too. A burst after a pause is free.
"""

import asyncio
import time
from collections.abc import Callable

MIN_CHARGE = 2**14  # bytes that a read counts at least: each costs the loop some 50 µs
BURST = 0.25  # seconds' worth of bytes that may come at once after a pause
DEBT = 1.0  # seconds of debt that the first reads of many connections may run up
RECENT = 1.0  # seconds for which an account counts as busy


class ByteRateLimiter:
    """One account. `rate` returns its current bytes per second."""

    def __init__(self, rate: Callable[[], float]) -> None:
        self._rate = rate
        self._due = 0.0
        self._turns = asyncio.Lock()

    def charge(self, size: int, now: float | None = None) -> float:
        """Count `size` bytes; return when the next read may begin, by the monotonic clock."""
        now = time.monotonic() if now is None else now
        self._due = max(self._due, now - BURST) + max(size, MIN_CHARGE) / self._rate()
        return self._due

    @staticmethod
    async def wait_until(due: float) -> None:
        """Wait until the time that `charge` returned, at least for one pass of the loop."""
        await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def wait_turn(self) -> None:
        """Wait for a separate pass of the loop: the bytes of 256 connections are not parsed in one."""
        async with self._turns:
            await self.wait_until(self._due - DEBT)

    def is_busy(self, now: float) -> bool:
        return self._due > now - RECENT
