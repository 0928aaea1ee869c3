"""Limit how many fetches run at once, for one host and in all: a slow host delays only its own."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class NoFreeSlotError(Exception):
    """No slot became free in time."""


class FetchSlots:
    """At most `each` at once for one key, and `all` together; who waits for more than `wait` seconds goes without."""

    def __init__(self, each: int, all: int, wait: float) -> None:
        self._each = each
        self._all = all
        self._wait = wait
        self._held: Counter[str] = Counter()
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def acquire(self, key: str) -> AsyncGenerator[None, None]:
        """A slot, for as long as the context lasts. Raises NoFreeSlotError."""
        try:
            async with asyncio.timeout(self._wait), self._freed:
                await self._freed.wait_for(lambda: self._held[key] < self._each and self._held.total() < self._all)
                self._held[key] += 1
        except TimeoutError:
            raise NoFreeSlotError from None
        try:
            yield
        finally:
            self._held[key] -= 1
            self._held += Counter()  # forget the keys of which none is held
            async with self._freed:
                self._freed.notify_all()
