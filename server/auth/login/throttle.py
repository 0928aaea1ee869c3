"""Slow down guessing: each key has a few free tries, then each try makes the wait longer.

The counts are in memory, or at all replicas together. A restart may drop them, but no guesser can cause one.
"""

import asyncio

import msgspec
from msgspec.structs import replace

from toolgate.server.auth.address_blocks import BLOCK_FACTOR, MAX_BLOCK, prefixes
from toolgate.server.base.bus.bus import Counters, KeyLimit

BRIEF = 1.0  # seconds that a key with refused tries alone is kept
ORIGIN_TIME = 30 * 86_400.0  # seconds that an address with a right guess is remembered
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


Paces = tuple[tuple[str, Backoff], ...]  # keys, each with its limit


class Throttle:
    """Count tries by keys of `counters`, before they are checked: tries that begin at once gain nothing. `refund` gives
    back a try that was no guess.

    A key has a number of tries, and a gate that is shut for its wait after each try. The tries are counted first; of
    several that find a gate open, one passes.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    async def take(self, paces: Paces) -> None:
        """Count one try for all keys. Raises ThrottledError if one of them must wait; then none is counted."""
        counters = self._counters
        counts = await asyncio.gather(*(counters.increment(name_tries(key), pace.forget) for key, pace in paces))
        waits = [(key, pace.wait(count)) for (key, pace), count in zip(paces, counts, strict=True)]
        gates = [KeyLimit(_name_gate(key), 1, wait) for key, wait in waits if wait > 0]
        wait = await counters.count(gates) if gates else 0.0
        if wait:
            await asyncio.gather(*(self._take_back(key, pace) for key, pace in paces))
            raise ThrottledError(wait)
        await asyncio.gather(*(counters.touch(name_tries(key), pace.forget) for key, pace in paces))

    async def refund(self, tries: int, paces: Paces) -> None:
        """Subtract so many tries from the count of each of these keys."""
        await asyncio.gather(*(self._refund(tries, key, pace) for key, pace in paces))

    async def forget(self, *keys: str) -> None:
        """Drop all tries of these keys."""
        await self._counters.delete(*(name(key) for key in keys for name in (name_tries, _name_gate)))

    async def _take_back(self, key: str, pace: Backoff) -> None:
        """Do not count a try that was refused. A key without any ends soon: refused tries must not fill the memory."""
        if await self._counters.increment(name_tries(key), pace.forget, -1) <= 0:
            await self._counters.touch(name_tries(key), BRIEF)  # a try that counts meanwhile prolongs it

    async def _refund(self, tries: int, key: str, pace: Backoff) -> None:
        count = await self._counters.increment(name_tries(key), pace.forget, -tries)
        wait = pace.wait(count)
        if wait > 0:
            await self._counters.touch(_name_gate(key), wait)
        else:
            await self._counters.delete(_name_gate(key), *([name_tries(key)] if count <= 0 else ()))


def name_tries(key: str) -> str:
    """Return the name under which the tries of a key are counted."""
    return f"tries {key}"


def _name_gate(key: str) -> str:
    return f"gate {key}"


class GuessAttempt(msgspec.Struct, frozen=True):
    """A counted guess. `own`: keys of this guesser alone; `shared`: keys that other guessers share."""

    own: Paces
    shared: Paces = ()
    mark: str = ""  # counts guesses at this name from this address, without a limit
    origin: str = ""

    @property
    def paces(self) -> Paces:
        """Return each key that the guess counts for, with its limit."""
        return (*self.own, *self.shared, *([(self.mark, UNLIMITED)] if self.mark else ()))


class GuessLimiter:
    """Limit guesses at the secrets of names: by name, by address and its blocks, and in total.

    Strangers can use up each of these limits. So a device or an address that was right before is counted separately:
    guesses at a name don't lock its owner out. `kind` begins all keys, where names of two kinds are counted together.
    """

    def __init__(self, counters: Counters, name: Backoff, address: Backoff, all: Backoff, kind: str = "") -> None:
        self._counters = counters
        self._throttle = Throttle(counters)
        self._name = name
        self._address = address
        self._all = all
        self._kind = kind

    async def take(self, name: str, address: str, device: str = "") -> GuessAttempt:
        """Count a guess. `name` is short. `address` is "" if unknown: a shared count would let one guesser lock all
        out. `device` proves an earlier sign-in to the name, or is "". Raises ThrottledError."""
        origin = self._name_origin(name, address)
        is_known = bool(origin) and await self._counters.get(origin) is not None
        attempt = self._plan(name, address, device, origin if is_known else "")
        await self._throttle.take(attempt.paces)
        return attempt

    async def take_back(self, attempt: GuessAttempt) -> None:
        """Do not count an attempt: nothing was checked."""
        await self._throttle.refund(1, attempt.paces)

    async def forgive(self, attempt: GuessAttempt) -> None:
        """Undo a right guess: drop the name's tries, and elsewhere those for this name from this address."""
        tries = int(await self._counters.get(name_tries(attempt.mark)) or 1) if attempt.mark else 1
        await self._throttle.refund(tries, attempt.shared)
        await self._throttle.forget(*(key for key, _ in attempt.own), *filter(None, [attempt.mark]))
        if attempt.origin:
            await self._counters.set(attempt.origin, b"1", ORIGIN_TIME)

    def _plan(self, name: str, address: str, device: str, origin: str) -> GuessAttempt:
        """Return the keys that a guess counts for. `origin` is "" unless a right guess came from there."""
        if device or origin:
            return GuessAttempt(((f"device {device}" if device else origin, self._name),), origin=origin)
        blocks = [(f"{self._kind}{block}", pace) for block, pace in block_backoffs(address, self._address)]
        origin = self._name_origin(name, address)
        mark = f"mark {origin}" if origin else ""
        own = ((f"{self._kind}name {name}", self._name),)
        return GuessAttempt(own, (*blocks, (f"{self._kind}all", self._all)), mark, origin)

    def _name_origin(self, name: str, address: str) -> str:
        """Return the key of guesses at a name from an address, or "" if that is unknown."""
        return f"{self._kind}origin {name} {prefixes(address)[0][:MAX_BLOCK]}" if address else ""


def block_backoffs(address: str, pace: Backoff) -> list[tuple[str, Backoff]]:
    """Return the limits of a try from an address: `pace` is its own; wider blocks get more tries and shorter waits. ""
    has none: it stands for all unknown addresses."""
    blocks = prefixes(address) if address else ()
    longest = min(pace.longest, BLOCK_WAIT)
    wider = (replace(pace, free=pace.free * BLOCK_FACTOR**step, longest=longest) for step in range(1, len(blocks)))
    return [(f"block {block[:MAX_BLOCK]}", each) for block, each in zip(blocks, (pace, *wider), strict=False)]
