"""Limit each principal's calls a minute: of all tools, and of the tools of one scope."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

SPAN = 60  # seconds
ANY = ""  # the key of the limit on all calls


class SlidingWindow:
    """Count events of the last minute by the second, in the same few bytes however many there are.

    No sixty seconds contain more than `wait` allowed. `now` is in seconds of any clock; if it is set back, counts it
    can't place are dropped.
    """

    __slots__ = ("_seconds", "count")

    def __init__(self) -> None:
        self.count = 0
        self._seconds: deque[tuple[float, int]] = deque()  # (second, count), oldest first

    def wait(self, now: float, limit: int) -> int:
        """Return the seconds until fewer than `limit`, at least 1, events are within a minute; 0 if that is now."""
        self._forget(now)
        over = self.count - limit
        if over < 0:
            return 0
        for last, times in self._seconds:
            over -= times
            if over < 0:
                return math.ceil(last + SPAN - now)
        raise ValueError(f"nothing is ever fewer than {limit}")

    def add(self, now: float) -> None:
        times = self._seconds.pop()[1] if self._seconds and int(self._seconds[-1][0]) == int(now) else 0
        self._seconds.append((now, times + 1))
        self.count += 1

    def is_over(self, now: float) -> bool:
        """Return whether the last event is a minute ago."""
        self._forget(now)
        return not self._seconds

    def _forget(self, now: float) -> None:
        """Drop a second once its last event is a minute ago."""
        seconds, until = self._seconds, now - SPAN
        if seconds and seconds[-1][0] > now:
            seconds.clear()
            self.count = 0
        while seconds and seconds[0][0] <= until:
            self.count -= seconds.popleft()[1]


class CallLimit(NamedTuple):
    """At most `most` calls of a principal in a minute: of the tools of one scope or, with ANY, all."""

    principal: str
    scope: str
    most: int


class ReachedLimit(NamedTuple):
    """A limit that refuses a call, and the seconds until it allows one."""

    limit: CallLimit
    seconds: int


class CallCounts(Protocol):
    """The calls of the last minute, here or at all replicas."""

    async def count(self, limits: Sequence[CallLimit]) -> ReachedLimit | None:
        """Count a call for all limits, or for none if one is reached. Return that one."""
        ...


class MemoryCallCounts:
    """The calls of this process in any sixty seconds. `now` is in seconds and never set back."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._minutes: dict[tuple[str, str], SlidingWindow] = {}  # by principal and scope, for recent callers
        self._swept = now()

    async def count(self, limits: Sequence[CallLimit]) -> ReachedLimit | None:
        now = self._now()
        self._sweep(now)
        minutes = [self._find(limit) for limit in limits]
        waits = [minute.wait(now, limit.most) for limit, minute in zip(limits, minutes, strict=True)]
        if longest := max(waits):
            return ReachedLimit(limits[waits.index(longest)], longest)
        for minute in minutes:
            minute.add(now)
        return None

    def __len__(self) -> int:
        """Return the number of windows in memory."""
        return len(self._minutes)

    def _find(self, limit: CallLimit) -> SlidingWindow:
        key = limit.principal, limit.scope
        minute = self._minutes.get(key)
        if minute is None:
            minute = self._minutes[key] = SlidingWindow()
        return minute

    def _sweep(self, now: float) -> None:
        """Once a minute, drop callers without a call in the last minute."""
        if now - self._swept > SPAN:
            self._swept = now
            self._minutes = {key: minute for key, minute in self._minutes.items() if not minute.is_over(now)}


class CallRateLimiter:
    """Refuse calls over `most`: scope → calls in a minute, `ANY` for all together; 0 or a missing scope is no limit.
    `counts` are this process's own if none are given."""

    def __init__(self, most: Mapping[str, int], counts: CallCounts | None = None) -> None:
        self._most = {scope: limit for scope, limit in most.items() if limit}
        self._counts = MemoryCallCounts() if counts is None else counts

    async def admit(self, principal: str, scope: str = ANY) -> str | None:
        """Count a call, or return why it is refused, without counting it."""
        scopes = (ANY,) if scope == ANY else (scope, ANY)
        limits = [CallLimit(principal, each, self._most[each]) for each in scopes if each in self._most]
        reached = await self._counts.count(limits) if limits else None
        return None if reached is None else _format_refusal(reached)


def _format_refusal(reached: ReachedLimit) -> str:
    _, scope, most = reached.limit
    of = f"calls of {scope}" if scope else "calls"
    return f"{most} {of} in a minute are allowed; try again in {reached.seconds} s"
