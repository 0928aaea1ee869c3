"""Makes guessing slow: each key may try a few times, then waits longer after every try. Knows nothing of what is
guessed; keeps its counts in memory, where a restart, which no guesser can order, forgets them.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

MOST = 10_000  # keys remembered: more guessers than that are held by the key all share


class Throttled(Exception):
    """Too many tries: nothing was looked at. `wait` is in seconds."""

    def __init__(self, wait: float) -> None:
        super().__init__(f"too many tries: wait {max(1, round(wait))} s")
        self.wait = max(1, round(wait))


@dataclass(frozen=True, slots=True)
class Pace:
    """`free` tries, then a wait that begins at a second and doubles up to `longest`; after `forget` seconds without a
    try all is forgotten."""

    free: int
    longest: float
    forget: float = 3600.0

    def wait(self, tries: int) -> float:
        """How long after the last of `tries` the next may come."""
        return 0.0 if tries < self.free else min(self.longest, 2.0 ** min(tries - self.free, 30))


@dataclass(slots=True)
class _Count:
    tries: int
    last: float


class Throttle:
    """Tries are counted when they begin, so that many at once gain nothing; `forgive` takes back what was no guess."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._counts: dict[str, _Count] = {}  # by when they were last tried, the earliest first

    def take(self, paces: Iterable[tuple[str, Pace]]) -> None:
        """One try for all keys. Raises Throttled when one of them has to wait: then none is counted."""
        keys, now = list(paces), self._now()
        waits = [self._wait(key, pace, now) for key, pace in keys]
        if any(wait > 0 for wait in waits):
            raise Throttled(max(waits))
        for key, _ in keys:
            count = self._counts.pop(key, None) or _Count(0, now)
            self._counts[key] = _Count(count.tries + 1, now)
        while len(self._counts) > MOST:
            del self._counts[next(iter(self._counts))]

    def forgive(self, *keys: str, one: bool = False) -> None:
        """Forget these keys' tries; with `one`, the last only."""
        for key in keys:
            count = self._counts.get(key)
            if count is not None and one:
                count.tries = max(0, count.tries - 1)
            else:
                self._counts.pop(key, None)

    def _wait(self, key: str, pace: Pace, now: float) -> float:
        count = self._counts.get(key)
        if count is None:
            return 0.0
        if now - count.last > pace.forget:
            del self._counts[key]
            return 0.0
        return count.last + pace.wait(count.tries) - now
