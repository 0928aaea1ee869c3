"""Limits on calls at two replicas: one count, on each kind of bus."""

import asyncio
from collections.abc import Callable

from tests.server.bus.conftest import shared_redis as shared_redis
from tests.server.bus.pairs import run_pair as run_pair
from toolgate.server.bus.bus import Bus, BusUnreachableError
from toolgate.server.bus.memory_bus import MemoryBus
from toolgate.server.bus.memory_keys import MemoryKeys
from toolgate.server.bus.settings import BusSettings
from toolgate.server.policy.rate_limit import ANY, CallRateLimiter
from toolgate.server.policy.shared_rate_limit import SharedRateLimiter

Run = Callable[..., None]
MOST = {ANY: 5, "tools:execute": 2, "tools:read": 0}


def limiter(bus: Bus) -> SharedRateLimiter:
    return SharedRateLimiter(MOST, CallRateLimiter(MOST), bus)


def test_calls_at_two_replicas_count_together(run_pair: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        both = [limiter(one), limiter(two)]
        for replica in both:
            assert await replica.count("ada", "tools:execute") is None
        for replica in both:
            assert "2 calls of tools:execute in a minute are allowed" in str(
                await replica.count("ada", "tools:execute")
            )
        for number in range(3):
            assert await both[number % 2].count("ada", "tools:read") is None
        for replica in both:
            assert "5 calls in a minute are allowed; try again in" in str(await replica.count("ada"))
            assert await replica.count("bob") is None

    run_pair(check)


def test_of_calls_at_once_none_is_one_too_many(run_pair: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        both = [limiter(one), limiter(two)]
        counts = await asyncio.gather(*(both[number % 2].count("ada") for number in range(40)))
        assert counts.count(None) == 5

    run_pair(check)


def test_without_redis_each_replica_counts_for_itself() -> None:
    class Away(MemoryKeys):
        async def count(self, _limits: object) -> float:
            raise BusUnreachableError("Redis is away")

    async def check() -> None:
        bus = MemoryBus(BusSettings())
        bus.keys = Away()
        here = limiter(bus)
        counts = [await here.count("ada") for _ in range(6)]
        assert counts[:5] == [None] * 5 and "5 calls" in str(counts[5])

    asyncio.run(check())
