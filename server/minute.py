"""How often something happened within the last minute. Knows nothing of what, or of whose limit that is.

The window slides: whichever sixty seconds one looks at, what `wait` let through fits the limit. It is kept by the
second, so that it takes the same few bytes however much happens.
"""

from collections import deque

SPAN = 60  # seconds


class Minute:
    """`now` is in seconds, of whichever clock; one that is set back forgets what it can't place any more."""

    __slots__ = ("_seconds", "count")

    def __init__(self) -> None:
        self.count = 0
        self._seconds: deque[tuple[int, int]] = deque()  # a second, and how often in it: the oldest first

    def wait(self, now: float, limit: int) -> int:
        """Seconds until fewer than `limit` are within a minute; 0 now. `limit` is at least 1."""
        self._forget(now)
        over = self.count - limit
        if over < 0:
            return 0
        for second, times in self._seconds:
            over -= times
            if over < 0:
                return second + SPAN + 1 - int(now)
        raise ValueError(f"nothing is ever fewer than {limit}")

    def add(self, now: float) -> None:
        second = int(now)
        times = self._seconds.pop()[1] if self._seconds and self._seconds[-1][0] == second else 0
        self._seconds.append((second, times + 1))
        self.count += 1

    def is_over(self, now: float) -> bool:
        """Whether a minute has passed since the last one."""
        self._forget(now)
        return not self._seconds

    def _forget(self, now: float) -> None:
        """A second is whole: what happened at its end must be a minute ago."""
        seconds, until = self._seconds, int(now) - SPAN
        if seconds and seconds[-1][0] > now:
            seconds.clear()
            self.count = 0
        while seconds and seconds[0][0] < until:
            self.count -= seconds.popleft()[1]
