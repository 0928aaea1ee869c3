"""Limit each principal's calls a minute: of all tools, and of the tools of one scope. Counts live in memory.

`features/replicas/services/rate_limit.py` counts over all replicas.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

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


class CallRateLimiter:
    """Count calls. `most` is scope → calls in any sixty seconds, `ANY` for all together; 0 or a missing scope is no
    limit. `now` is in seconds and never set back."""

    def __init__(self, most: Mapping[str, int], now: Callable[[], float] = time.monotonic) -> None:
        self.most = {scope: limit for scope, limit in most.items() if limit}
        self._now = now
        self._minutes: dict[tuple[str, str], SlidingWindow] = {}  # by principal and scope, for recent callers
        self._swept = now()

    async def admit(self, principal: str, scope: str = ANY) -> str | None:
        """Like `count`, as a limiter whose counts are elsewhere has it."""
        return self.count(principal, scope)

    def count(self, principal: str, scope: str = ANY) -> str | None:
        """Count a call, or return why it is refused, without counting it."""
        now = self._now()
        self._sweep(now)
        held = list(self._windows_of(principal, scope))
        waits = [(minute.wait(now, self.most[key]), key) for key, minute in held]
        wait, key = max(waits, default=(0, ANY))
        if wait:
            return format_refusal(key, self.most, wait)
        for _, minute in held:
            minute.add(now)
        return None

    def __len__(self) -> int:
        """Return the number of windows in memory."""
        return len(self._minutes)

    def _windows_of(self, principal: str, scope: str) -> Iterator[tuple[str, SlidingWindow]]:
        for key in (ANY, scope) if scope else (ANY,):
            if key not in self.most:
                continue
            minute = self._minutes.get((principal, key))
            if minute is None:
                minute = self._minutes[principal, key] = SlidingWindow()
            yield key, minute

    def _sweep(self, now: float) -> None:
        """Once a minute, drop callers without a call in the last minute."""
        if now - self._swept > SPAN:
            self._swept = now
            self._minutes = {key: minute for key, minute in self._minutes.items() if not minute.is_over(now)}


def format_refusal(scope: str, most: Mapping[str, int], wait: int) -> str:
    """Return why a call is refused that is one too many of `scope`."""
    of = f"calls of {scope}" if scope else "calls"
    return f"{most[scope]} {of} in a minute are allowed; try again in {wait} s"
