"""Count each principal's calls a minute at all replicas together.

A replica reserves a hundredth of a limit at once, so most calls need no round trip. What it does not use counts until
the minute ends: a call may be refused that much too early, and none is let through too much.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence

import msgspec

from toolgate.server.base.bus.bus import Bus, BusUnreachableError, KeyLimit
from toolgate.server.base.limits.rate_limit import SPAN, CallLimit, ReachedLimit

PATIENCE = 0.25  # seconds that a call waits for Redis: after a second its answer would be a stream
SHARE = 100  # a replica reserves one part in so many of a limit
MAX_RESERVED = 100  # calls, of the largest limits


class _CallAllowance(msgspec.Struct, eq=False):
    """Calls of one principal and scope that are reserved here.

    until: the end of their minute
    waiting: calls that wait for `request`, which reserves more and returns why it can't
    """

    count: int = 0
    until: float = 0.0
    waiting: int = 0
    request: "asyncio.Task[ReachedLimit | None] | None" = None


class RedisCallCounts:
    """The calls by keys of the bus. `now` is in seconds and never set back; `patience` is how long a call waits for
    Redis.

    A minute begins with its first call, so up to twice as many may come around its end.
    """

    def __init__(self, bus: Bus, now: Callable[[], float] = time.monotonic, patience: float = PATIENCE) -> None:
        self._bus = bus
        self._now = now
        self._patience = patience
        self._allowances: dict[tuple[str, str], _CallAllowance] = {}  # by principal and scope
        self._swept = now()

    async def count(self, limits: Sequence[CallLimit]) -> ReachedLimit | None:
        """Count a call as CallCounts does. Raises BusUnreachableError."""
        taken: list[tuple[_CallAllowance, float]] = []
        try:
            for limit in limits:  # the narrower first: what it refuses takes nothing from the other
                allowance = self._find(limit)
                if not self._take(allowance) and (reached := await self._wait(allowance, limit)) is not None:
                    self._put_back(taken)
                    return reached
                taken.append((allowance, allowance.until))
        except TimeoutError:
            self._put_back(taken)
            raise BusUnreachableError("Redis is slow") from None
        except (BusUnreachableError, asyncio.CancelledError):
            self._put_back(taken)
            raise
        return None

    def __len__(self) -> int:
        """Return the number of allowances in memory."""
        return len(self._allowances)

    def _find(self, limit: CallLimit) -> _CallAllowance:
        key = limit.principal, limit.scope
        allowance = self._allowances.get(key)
        if allowance is None:
            self._sweep()
            allowance = self._allowances[key] = _CallAllowance()
        return allowance

    def _take(self, allowance: _CallAllowance) -> bool:
        """Use a call of the allowance. Return whether there was one."""
        if not allowance.count or allowance.until <= self._now():
            return False
        allowance.count -= 1
        return True

    async def _wait(self, allowance: _CallAllowance, limit: CallLimit) -> ReachedLimit | None:
        """Use a call once more are reserved, or return why none is. Raises BusUnreachableError, TimeoutError."""
        if not self._bus.health().is_reachable:  # no call waits for a reconnect
            raise BusUnreachableError("Redis is away")
        allowance.waiting += 1
        try:
            async with asyncio.timeout(self._patience):
                while True:
                    if allowance.request is None:
                        allowance.request = asyncio.create_task(self._reserve(allowance, limit))
                        allowance.request.add_done_callback(_look_at)
                    reached = await asyncio.shield(allowance.request)
                    if reached is not None or self._take(allowance):
                        return reached
        finally:
            allowance.waiting -= 1

    async def _reserve(self, allowance: _CallAllowance, limit: CallLimit) -> ReachedLimit | None:
        """Reserve the calls that wait, and some more. Return why none is, or None. Raises BusUnreachableError."""
        began, count = self._now(), max(1, min(limit.most // SHARE, MAX_RESERVED), allowance.waiting)
        key = KeyLimit(f"calls {limit.principal} {limit.scope}", limit.most, SPAN)
        try:
            [found] = await self._bus.keys.reserve([key], [count])
        finally:
            allowance.request = None
        if not found.granted:
            return ReachedLimit(limit, math.ceil(found.seconds))
        left = allowance.count if allowance.until > began else 0
        allowance.count, allowance.until = left + found.granted, began + found.seconds
        return None

    def _put_back(self, taken: list[tuple[_CallAllowance, float]]) -> None:
        for allowance, until in taken:
            if allowance.until == until:  # still of this minute
                allowance.count += 1

    def _sweep(self) -> None:
        """Once a minute, drop allowances that have ended."""
        now = self._now()
        if now - self._swept > SPAN:
            self._swept = now
            self._allowances = {
                key: allowance
                for key, allowance in self._allowances.items()
                if allowance.until > now or allowance.waiting
            }


def _look_at(request: "asyncio.Task[ReachedLimit | None]") -> None:
    """A request that fails after all its calls have gone is no fault to log."""
    if not request.cancelled():
        request.exception()
