"""Slow down guessing at all replicas together, by keys of the bus. While Redis is away each replica counts for itself.

A key has a number of tries, and a gate that is shut for its wait after each try. The tries are counted first, so
concurrent ones gain nothing; of several that find a gate open, one passes.
"""

import asyncio
import logging
from collections.abc import Iterable

from toolgate.server.auth.login.throttle import (
    Backoff,
    GuessAttempt,
    GuessLimiter,
    Paces,
    Throttle,
    ThrottledError,
)
from toolgate.server.base.bus.bus import BusUnreachableError, KeyLimit, Keys

ORIGIN_TIME = 30 * 86_400.0  # seconds that an address with a right guess is remembered

log = logging.getLogger("toolgate.auth")


class SharedThrottle:
    """The `Throttle` of all replicas with `keys`, or `local` without."""

    def __init__(self, local: Throttle, keys: Keys | None = None) -> None:
        self._local = local
        self._keys = keys

    async def take(self, paces: Paces) -> None:
        """Count one try for all keys. Raises ThrottledError if one of them must wait; then none is counted."""
        if self._keys is not None:
            try:
                return await self._take(self._keys, paces)
            except BusUnreachableError as error:
                log.warning("guesses are counted by this process alone: %s", error)
        return self._local.take(paces)

    async def refund(self, tries: int, paces: Paces) -> None:
        """Return so many tries to each of these keys."""
        if self._keys is None:
            self._local.refund(tries, *(key for key, _ in paces))
            return
        try:
            await asyncio.gather(*(self._refund(self._keys, tries, key, pace) for key, pace in paces))
        except BusUnreachableError as error:
            log.warning("tries are not returned: %s", error)

    async def _take(self, keys: Keys, paces: Paces) -> None:
        counts = await asyncio.gather(*(keys.increment(_tries(key), pace.forget) for key, pace in paces))
        waits = [(key, pace.wait(count)) for (key, pace), count in zip(paces, counts, strict=True)]
        gates = [KeyLimit(_gate(key), 1, wait) for key, wait in waits if wait > 0]
        wait = await keys.count(gates) if gates else 0.0
        if wait:
            await asyncio.gather(*(keys.increment(_tries(key), pace.forget, -1) for key, pace in paces))
            raise ThrottledError(wait)
        await asyncio.gather(*(keys.touch(_tries(key), pace.forget) for key, pace in paces))

    async def _refund(self, keys: Keys, tries: int, key: str, pace: Backoff) -> None:
        count = await keys.increment(_tries(key), pace.forget, -tries)
        wait = pace.wait(count)
        if wait > 0:
            await keys.touch(_gate(key), wait)
        else:
            await keys.delete(_gate(key), *([_tries(key)] if count <= 0 else ()))


class SharedGuessLimiter:
    """The `GuessLimiter` of all replicas with `keys`, or `local` without."""

    def __init__(self, local: GuessLimiter, throttle: SharedThrottle, keys: Keys | None = None) -> None:
        self._local = local
        self._throttle = throttle
        self._keys = keys

    async def take(self, name: str, address: str, device: str = "") -> GuessAttempt:
        """Count a guess, as `GuessLimiter.take`. Raises ThrottledError."""
        if self._keys is None:
            return self._local.take(name, address, device)
        origin = self._local.name_origin(name, address)
        try:
            is_known = bool(origin) and await self._keys.get(origin) is not None
        except BusUnreachableError:
            return self._local.take(name, address, device)
        attempt = self._local.plan(name, address, device, origin if is_known else "")
        await self._throttle.take(attempt.paces)
        return attempt

    async def take_back(self, attempt: GuessAttempt) -> None:
        """Do not count an attempt: nothing was checked."""
        await self._throttle.refund(1, attempt.paces)

    async def forgive(self, attempt: GuessAttempt) -> None:
        """Undo a right guess, as `GuessLimiter.forgive`."""
        if self._keys is None:
            self._local.forgive(attempt)
            return
        try:
            tries = int(await self._keys.get(_tries(attempt.mark)) or 1) if attempt.mark else 1
            await self._throttle.refund(tries, attempt.shared)
            await self._keys.delete(*_names(key for key, _ in attempt.own), *_names([attempt.mark]))
            if attempt.origin:
                await self._keys.set(attempt.origin, b"1", ORIGIN_TIME)
        except BusUnreachableError as error:
            log.warning("a right guess is not noted: %s", error)


def _tries(key: str) -> str:
    return f"tries {key}"


def _gate(key: str) -> str:
    return f"gate {key}"


def _names(keys: Iterable[str]) -> list[str]:
    return [name(key) for key in keys if key for name in (_tries, _gate)]
