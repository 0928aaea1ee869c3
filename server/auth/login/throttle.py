"""Slow down guessing: each key has a few free tries, then waits longer after every try.

The counts are in the memory of one process. A restart forgets them, which no guesser can cause. Several servers on one
state count each for itself.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from toolgate.server.auth.address_blocks import BLOCK_FACTOR, prefixes

MAX_KEYS = 20_000  # keys remembered, of which a try has six: more guessers than that are slowed by the key all share
MAX_ORIGINS = 10_000  # pairs of a name and an address it was right from
BLOCK_WAIT = 300.0  # seconds, the longest wait of a block: a guesser's neighbours wait too


class ThrottledError(Exception):
    """Too many tries: nothing was looked at. `wait` is in seconds."""

    def __init__(self, wait: float) -> None:
        super().__init__(f"too many tries: wait {max(1, round(wait))} s")
        self.wait = max(1, round(wait))


@dataclass(frozen=True, slots=True)
class Backoff:
    """`free` tries, then a wait that begins at a second and doubles up to `longest`; after `forget` seconds without a
    try all is forgotten."""

    free: int
    longest: float
    forget: float = 3600.0

    def wait(self, tries: int) -> float:
        """How long after the last of `tries` the next may come."""
        return 0.0 if tries < self.free else min(self.longest, 2.0 ** min(tries - self.free, 30))


UNLIMITED = Backoff(free=2**62, longest=0.0)  # counts, and slows nothing down


@dataclass(slots=True)
class _Count:
    tries: int
    last: float


class Throttle:
    """Tries are counted when they begin, so that many at once gain nothing; what was no guess is forgotten after."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._counts: dict[str, _Count] = {}  # by when they were last tried, the earliest first

    def take(self, paces: Iterable[tuple[str, Backoff]]) -> None:
        """One try for all keys. Raises ThrottledError when one of them has to wait: then none is counted."""
        keys, now = list(paces), self._now()
        waits = [self._wait(key, pace, now) for key, pace in keys]
        if any(wait > 0 for wait in waits):
            raise ThrottledError(max(waits))
        for key, _ in keys:
            count = self._counts.pop(key, None) or _Count(0, now)
            self._counts[key] = _Count(count.tries + 1, now)
        while len(self._counts) > MAX_KEYS:
            del self._counts[next(iter(self._counts))]

    def forget(self, *keys: str) -> None:
        """Forget all tries of these keys."""
        for key in keys:
            self._counts.pop(key, None)

    def refund(self, tries: int, *keys: str) -> None:
        """Forget so many tries of each of these keys."""
        for key in keys:
            count = self._counts.get(key)
            if count is not None:
                count.tries = max(0, count.tries - tries)

    def tries(self, key: str) -> int:
        """Return how many tries of a key are counted."""
        count = self._counts.get(key)
        return 0 if count is None else count.tries

    def _wait(self, key: str, pace: Backoff, now: float) -> float:
        count = self._counts.get(key)
        if count is None:
            return 0.0
        if now - count.last > pace.forget:
            del self._counts[key]
            return 0.0
        return count.last + pace.wait(count.tries) - now


@dataclass(frozen=True, slots=True)
class GuessAttempt:
    """A guess that counts. `own`: keys of this guesser alone; `shared`: keys that others guess under too."""

    own: tuple[str, ...]
    shared: tuple[str, ...] = ()
    mark: str = ""  # counts the guesses at this name from this address, and slows nothing down
    origin: str = ""


class GuessLimiter:
    """Guesses at the secrets of names: counted by name, by the address with the blocks around it, and all together.

    Strangers can use up each of these. So who was right before, as a device or from an address, is counted apart: a
    name's owner is not kept out by those who guess at it.
    """

    def __init__(self, throttle: Throttle, name: Backoff, address: Backoff, all: Backoff) -> None:
        self._throttle = throttle
        self._name = name
        self._address = address
        self._all = all
        self._origins: dict[str, None] = {}  # by when they were right last, the earliest first

    def take(self, name: str, address: str, device: str = "") -> GuessAttempt:
        """Count a guess. `name` is a short one; `address` is "" where it is unknown: everybody's would let one lock
        all out; `device` proves that the name's owner has used it, or is "". Raises ThrottledError."""
        origin = f"origin {name} {prefixes(address)[0]}" if address else ""
        if device or origin in self._origins:
            key = f"device {device}" if device else origin
            self._throttle.take([(key, self._name)])
            return GuessAttempt((key,), origin=origin)
        blocks, whole, mark = block_backoffs(address, self._address), f"name {name}", f"mark {origin}" if origin else ""
        marks = [(mark, UNLIMITED)] if mark else []
        self._throttle.take([(whole, self._name), *blocks, ("all", self._all), *marks])
        return GuessAttempt((whole,), (*(block for block, _ in blocks), "all"), mark, origin)

    def forgive(self, attempt: GuessAttempt) -> None:
        """It was no guess: forget the name's tries, and of the others those for this name from this address."""
        tries = self._throttle.tries(attempt.mark) if attempt.mark else 1
        self._throttle.refund(tries, *attempt.shared)
        self._throttle.forget(*attempt.own, attempt.mark)
        if attempt.origin:
            self._origins.pop(attempt.origin, None)
            self._origins[attempt.origin] = None
        while len(self._origins) > MAX_ORIGINS:
            del self._origins[next(iter(self._origins))]


def block_backoffs(address: str, pace: Backoff) -> list[tuple[str, Backoff]]:
    """What a try from an address counts for: `pace` is its own; a wider block has more tries and waits less. Nothing
    for "", which is everybody's."""
    blocks = prefixes(address) if address else ()
    longest = min(pace.longest, BLOCK_WAIT)
    wider = (replace(pace, free=pace.free * BLOCK_FACTOR**step, longest=longest) for step in range(1, len(blocks)))
    return [(f"block {block}", each) for block, each in zip(blocks, (pace, *wider), strict=False)]
