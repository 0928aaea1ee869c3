"""Share descriptors and the event loop's time between the proxies of a server."""

import asyncio
import resource
import time
from collections.abc import Sized

from toolgate.tools.api.concurrency.rate_limiter import ByteRateLimiter

MAX_EACH = 256  # connections of one proxy at once; more wait in its backlog
MAX_ALL = 1_024  # of all proxies, if the server has enough descriptors
GUARANTEED = 16  # connections of each proxy, however many the others have
PART = 8  # a connection takes two descriptors: so a quarter of the server's
RATE = 32 * 2**20  # bytes a second of one proxy, both ways together
ALL_RATE = 64 * 2**20  # bytes a second of all proxies, shared evenly by the busy ones
COUNT_EVERY = 0.1  # seconds


class SharedProxyLimits:
    """The limits of all proxies: `most` open connections, and up to GUARANTEED of each proxy beyond that."""

    def __init__(self, most: int | None = None, rate: float = ALL_RATE) -> None:
        self._most = _default_connections() if most is None else most
        self._rate = rate
        self._open = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._limiters: set[ByteRateLimiter] = set()
        self._busy = 1
        self._counted = 0.0

    def join(self) -> ByteRateLimiter:
        """Return the rate account of a new proxy."""
        limiter = ByteRateLimiter(self._share)
        self._limiters.add(limiter)
        return limiter

    def leave(self, limiter: ByteRateLimiter) -> None:
        self._limiters.discard(limiter)

    async def enter(self, connections: Sized) -> None:
        """Wait until a proxy that has `connections` may have one more, and count it."""
        while len(connections) >= MAX_EACH or (len(connections) >= GUARANTEED and self._open >= self._most):
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        self._open += 1

    def exit(self) -> None:
        """Count an ended connection; all waiting proxies check again, the longest waiting first."""
        self._open -= 1
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _share(self) -> float:
        now = time.monotonic()
        if now - self._counted > COUNT_EVERY:
            self._counted = now
            self._busy = max(1, sum(limiter.is_busy(now) for limiter in self._limiters))
        return min(RATE, self._rate / self._busy)


def _default_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_ALL if soft == resource.RLIM_INFINITY else min(MAX_ALL, soft // PART)
