"""Count at all replicas together, and at each alone while Redis is away."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from toolgate.server.base.bus.bus import BusUnreachableError, Counters, KeyLimit

T = TypeVar("T")

log = logging.getLogger("toolgate")


class FallbackCounters:
    """The counters of Redis, `shared`, and `local` ones while it is away."""

    def __init__(self, shared: Counters, local: Counters) -> None:
        self._shared = shared
        self._local = local
        self._is_away = False

    async def get(self, key: str) -> bytes | None:
        return await self._use(lambda counters: counters.get(key))

    async def set(self, key: str, value: bytes, seconds: float) -> None:
        await self._use(lambda counters: counters.set(key, value, seconds))

    async def delete(self, *keys: str) -> int:
        return await self._use(lambda counters: counters.delete(*keys))

    async def touch(self, key: str, seconds: float) -> bool:
        return await self._use(lambda counters: counters.touch(key, seconds))

    async def increment(self, key: str, seconds: float, by: int = 1) -> int:
        return await self._use(lambda counters: counters.increment(key, seconds, by))

    async def count(self, limits: Sequence[KeyLimit]) -> float:
        return await self._use(lambda counters: counters.count(limits))

    async def _use(self, count: Callable[[Counters], Awaitable[T]]) -> T:
        try:
            result = await count(self._shared)
        except BusUnreachableError as error:
            if not self._is_away:
                log.warning("this process counts tries alone: %s", error)
            self._is_away = True
            return await count(self._local)
        self._is_away = False
        return result
