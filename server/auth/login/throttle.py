"""Slow down guessing: each key has a few free tries, then each try makes the wait longer.

These counts are in one process's memory. A restart drops them, but no guesser can cause one. `shared_throttle.py`
counts over all replicas.
"""

import time
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from toolgate.server.auth.address_blocks import BLOCK_FACTOR, prefixes

MAX_KEYS = 20_000  # keys in memory, six for each try; if there are more guessers, the shared key slows them all
MAX_ORIGINS = 10_000  # pairs of a name and an address with a right guess
BLOCK_WAIT = 300.0  # seconds, the longest wait of a block: a guesser's neighbours wait too


class ThrottledError(Exception):
    """Too many tries: nothing was checked. `wait` is in seconds."""

    def __init__(self, wait: float) -> None:
        super().__init__(f"too many attempts: wait {max(1, round(wait))} s")
        self.wait = max(1, round(wait))


class Backoff(msgspec.Struct, frozen=True):
    """Allow `free` tries, then waits that double from a second to `longest`. `forget` seconds without one reset it."""

    free: int
    longest: float
    forget: float = 3600.0

    def wait(self, tries: int) -> float:
        """Return the wait after so many tries."""
        return 0.0 if tries < self.free else min(self.longest, 2.0 ** min(tries - self.free, 30))


UNLIMITED = Backoff(free=2**62, longest=0.0)  # counts, without a limit


class _Count(msgspec.Struct):
    tries: int
    last: float


class Throttle:
    """Count tries as they begin, so that concurrent ones gain nothing. A try that was no guess is taken back later."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._counts: dict[str, _Count] = {}  # by time of the last try, oldest first

    def take(self, paces: Iterable[tuple[str, Backoff]]) -> None:
        """Count one try for all keys. Raises ThrottledError if one of them must wait; then none is counted."""
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
        """Drop all tries of these keys."""
        for key in keys:
            self._counts.pop(key, None)

    def refund(self, tries: int, *keys: str) -> None:
        """Return so many tries to each of these keys."""
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


Paces = tuple[tuple[str, Backoff], ...]  # keys, each with its limit


class GuessAttempt(msgspec.Struct, frozen=True):
    """A counted guess. `own`: keys of this guesser alone; `shared`: keys that other guessers share."""

    own: Paces
    shared: Paces = ()
    mark: str = ""  # counts guesses at this name from this address, without a limit
    origin: str = ""

    @property
    def paces(self) -> Paces:
        """Return all that the guess counts for."""
        return (*self.own, *self.shared, *([(self.mark, UNLIMITED)] if self.mark else ()))


class GuessLimiter:
    """Limit guesses at the secrets of names: by name, by address and its blocks, and in total.

    Strangers can use up each of these limits. So a device or an address that was right before is counted separately:
    guesses at a name don't lock its owner out. `kind` begins all keys, where names of two kinds are counted together.
    """

    def __init__(self, throttle: Throttle, name: Backoff, address: Backoff, all: Backoff, kind: str = "") -> None:
        self._throttle = throttle
        self._name = name
        self._address = address
        self._all = all
        self._kind = kind
        self._origins: dict[str, None] = {}  # by time of the last right guess, oldest first

    def plan(self, name: str, address: str, device: str, origin: str) -> GuessAttempt:
        """Return what a guess counts for. `origin` is "" unless a right guess came from there."""
        if device or origin:
            return GuessAttempt(((f"device {device}" if device else origin, self._name),), origin=origin)
        blocks = [(f"{self._kind}{block}", pace) for block, pace in block_backoffs(address, self._address)]
        origin = self.name_origin(name, address)
        mark = f"mark {origin}" if origin else ""
        own = ((f"{self._kind}name {name}", self._name),)
        return GuessAttempt(own, (*blocks, (f"{self._kind}all", self._all)), mark, origin)

    def take(self, name: str, address: str, device: str = "") -> GuessAttempt:
        """Count a guess. `name` is short. `address` is "" if unknown: a shared count would let one guesser lock all
        out. `device` proves an earlier sign-in to the name, or is "". Raises ThrottledError."""
        origin = self.name_origin(name, address)
        attempt = self.plan(name, address, device, origin if origin in self._origins else "")
        self._throttle.take(attempt.paces)
        return attempt

    def forgive(self, attempt: GuessAttempt) -> None:
        """Undo a right guess: drop the name's tries, and elsewhere those for this name from this address."""
        tries = self._throttle.tries(attempt.mark) if attempt.mark else 1
        self._throttle.refund(tries, *(key for key, _ in attempt.shared))
        self._throttle.forget(*(key for key, _ in attempt.own), attempt.mark)
        if attempt.origin:
            self._origins.pop(attempt.origin, None)
            self._origins[attempt.origin] = None
        while len(self._origins) > MAX_ORIGINS:
            del self._origins[next(iter(self._origins))]

    def name_origin(self, name: str, address: str) -> str:
        """Return the key of guesses at a name from an address, or "" if that is unknown."""
        return f"{self._kind}origin {name} {prefixes(address)[0]}" if address else ""


def block_backoffs(address: str, pace: Backoff) -> list[tuple[str, Backoff]]:
    """Return the limits of a try from an address: `pace` is its own; wider blocks get more tries and shorter waits. ""
    has none: it stands for all unknown addresses."""
    blocks = prefixes(address) if address else ()
    longest = min(pace.longest, BLOCK_WAIT)
    wider = (replace(pace, free=pace.free * BLOCK_FACTOR**step, longest=longest) for step in range(1, len(blocks)))
    return [(f"block {block}", each) for block, each in zip(blocks, (pace, *wider), strict=False)]
