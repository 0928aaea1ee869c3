"""Count how often something happened within the last minute.

The window slides: whichever sixty seconds one looks at, what `wait` let through fits the limit. It counts by the
second, so that it takes the same few bytes however much happens.
"""

import math
from collections import deque

SPAN = 60  # seconds


class SlidingWindow:
    """`now` is in seconds, of whichever clock; one that is set back forgets what it can't place any more."""

    __slots__ = ("_seconds", "count")

    def __init__(self) -> None:
        self.count = 0
        self._seconds: deque[tuple[float, int]] = deque()  # the last in a second, and how often in it: the oldest first

    def wait(self, now: float, limit: int) -> int:
        """Seconds until fewer than `limit` are within a minute; 0 now. `limit` is at least 1."""
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
        """Whether a minute has passed since the last one."""
        self._forget(now)
        return not self._seconds

    def _forget(self, now: float) -> None:
        """Those of a second are a minute ago when the last of them is."""
        seconds, until = self._seconds, now - SPAN
        if seconds and seconds[-1][0] > now:
            seconds.clear()
            self.count = 0
        while seconds and seconds[0][0] <= until:
            self.count -= seconds.popleft()[1]
