"""Count at all replicas together, and at each alone while Redis is away."""

import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from toolgate.server.base.bus.bus import BusUnreachableError, Counters, KeyLimit
from toolgate.server.base.limits.rate_limit import CallCounts, CallLimit, ReachedLimit

T = TypeVar("T")
S = TypeVar("S")

QUIET = 60.0  # seconds without a failure after which the next is logged: what is reserved here counts meanwhile

log = logging.getLogger("toolgate")


class Fallback(Generic[S]):
    """The store in Redis, `shared`, and a `local` one while it is away. `what` they count is for the log."""

    def __init__(self, shared: S, local: S, what: str) -> None:
        self._shared = shared
        self._local = local
        self._what = what
        self._failed_at = -math.inf

    async def use(self, work: Callable[[S], Awaitable[T]]) -> T:
        """Return the result of the work with the store that is there."""
        try:
            return await work(self._shared)
        except BusUnreachableError as error:
            before, self._failed_at = self._failed_at, time.monotonic()
            if self._failed_at - before > QUIET:
                log.warning("this process counts %s alone: %s", self._what, error)
            return await work(self._local)


class FallbackCallCounts:
    """The calls of all replicas, or of this one."""

    def __init__(self, shared: CallCounts, local: CallCounts) -> None:
        self._counts = Fallback(shared, local, "calls")

    async def count(self, limits: Sequence[CallLimit]) -> ReachedLimit | None:
        return await self._counts.use(lambda counts: counts.count(limits))


class FallbackCounters:
    """The counters of guesses at all replicas, or at this one."""

    def __init__(self, shared: Counters, local: Counters) -> None:
        self._counters = Fallback(shared, local, "tries")

    async def get(self, key: str) -> bytes | None:
        return await self._counters.use(lambda counters: counters.get(key))

    async def set(self, key: str, value: bytes, seconds: float) -> None:
        await self._counters.use(lambda counters: counters.set(key, value, seconds))

    async def delete(self, *keys: str) -> int:
        return await self._counters.use(lambda counters: counters.delete(*keys))

    async def touch(self, key: str, seconds: float) -> bool:
        return await self._counters.use(lambda counters: counters.touch(key, seconds))

    async def increment(self, key: str, seconds: float, by: int = 1) -> int:
        return await self._counters.use(lambda counters: counters.increment(key, seconds, by))

    async def count(self, limits: Sequence[KeyLimit]) -> float:
        return await self._counters.use(lambda counters: counters.count(limits))
