"""Limits on calls at two replicas: one count, on each kind of bus."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.clients.raw_client import PATIENCE
from tests.server.features.replicas.bus.conftest import shared_redis as shared_redis
from tests.server.features.replicas.bus.pairs import run_pair as run_pair
from toolgate.server.base.bus.bus import Bus, BusUnreachableError, Reservation
from toolgate.server.base.bus.memory_bus import MemoryBus
from toolgate.server.base.bus.memory_keys import MemoryKeys
from toolgate.server.base.bus.settings import BusSettings
from toolgate.server.base.limits.rate_limit import ANY, CallRateLimiter, MemoryCallCounts
from toolgate.server.features.replicas.services.call_counts import RedisCallCounts
from toolgate.server.features.replicas.services.fallback import FallbackCallCounts

Run = Callable[..., None]
MOST = {ANY: 5, "tools:execute": 2, "tools:read": 0}


def limiter(bus: Bus, most: Mapping[str, int] = MOST) -> CallRateLimiter:
    return CallRateLimiter(most, FallbackCallCounts(RedisCallCounts(bus, patience=PATIENCE), MemoryCallCounts()))


def test_calls_at_two_replicas_count_together(run_pair: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        both = [limiter(one), limiter(two)]
        for replica in both:
            assert await replica.admit("ada", "tools:execute") is None
        for replica in both:
            assert "2 calls of tools:execute in a minute are allowed" in str(
                await replica.admit("ada", "tools:execute")
            )
        for number in range(3):
            assert await both[number % 2].admit("ada", "tools:read") is None
        for replica in both:
            assert "5 calls in a minute are allowed; try again in" in str(await replica.admit("ada"))
            assert await replica.admit("bob") is None

    run_pair(check)


def test_of_calls_at_once_none_is_one_too_many(run_pair: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        both = [limiter(one), limiter(two)]
        counts = await asyncio.gather(*(both[number % 2].admit("ada") for number in range(40)))
        assert counts.count(None) == 5

    run_pair(check)


class Away(MemoryKeys):
    """Keys in a Redis that can't be reached."""

    async def reserve(self, _limits: object, _counts: object) -> list[Reservation]:
        raise BusUnreachableError("Redis is away")


def test_without_redis_each_replica_counts_for_itself() -> None:
    async def check() -> None:
        bus = MemoryBus(BusSettings())
        bus.keys = Away()
        here = limiter(bus)
        counts = [await here.admit("ada") for _ in range(6)]
        assert counts[:5] == [None] * 5 and "5 calls" in str(counts[5])

    asyncio.run(check())


def test_that_redis_is_away_is_logged_once_while_some_calls_are_still_reserved(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def check() -> None:
        bus = MemoryBus(BusSettings())
        here = limiter(bus, {ANY: 500})
        assert await here.admit("ada") is None
        bus.keys = Away()
        for _ in range(4):
            assert await here.admit("ada") is await here.admit("bob") is None
        assert [record.getMessage() for record in caplog.records] == ["this process counts calls alone: Redis is away"]

    asyncio.run(check())


def test_no_call_waits_long_for_a_slow_redis() -> None:
    class Slow(MemoryKeys):
        async def reserve(self, _limits: object, _counts: object) -> list[Reservation]:
            await asyncio.Event().wait()
            return []

    async def check() -> None:
        bus = MemoryBus(BusSettings())
        bus.keys = Slow()
        counts = RedisCallCounts(bus, patience=0.01)
        here = CallRateLimiter(MOST, FallbackCallCounts(counts, MemoryCallCounts()))
        assert [await here.admit("ada", "tools:execute") for _ in range(2)] == [None] * 2
        assert "2 calls of tools:execute" in str(await here.admit("ada", "tools:execute"))

    asyncio.run(check())


def test_a_replica_reserves_a_hundredth_and_lets_no_call_too_many_through(run_pair: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        most = {ANY: 1_000}
        both = [limiter(bus, most) for bus in (one, two)]
        key = "calls ada "
        assert await both[0].admit("ada") is None
        assert await one.keys.get(key) == b"10"
        for _ in range(9):
            assert await both[0].admit("ada") is None
        assert await one.keys.get(key) == b"10"
        counts = [await both[number % 2].admit("ada") for number in range(1_001)]
        assert counts.count(None) == 990
        assert await two.keys.get(key) == b"1000"

    run_pair(check)


def test_of_many_calls_at_once_each_is_counted_once(run_pair: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        most = {ANY: 400, "tools:read": 300}
        both = [limiter(bus, most) for bus in (one, two)]
        counts = await asyncio.gather(*(both[number % 2].admit("ada", "tools:read") for number in range(1_000)))
        assert counts.count(None) == 300
        rest = await asyncio.gather(*(both[number % 2].admit("ada") for number in range(1_000)))
        assert rest.count(None) == 100

    run_pair(check)


def test_a_reservation_ends_with_its_minute() -> None:
    async def check() -> None:
        time, most = [0.0], {ANY: 200}
        bus = MemoryBus(BusSettings())
        bus.keys = MemoryKeys(lambda: time[0])
        counts = [RedisCallCounts(bus, lambda: time[0]) for _ in range(2)]
        here, there = (CallRateLimiter(most, each) for each in counts)
        assert await here.admit("ada") is None and len(counts[0]) == 1
        time[0] = 61.0
        assert [await there.admit("ada") for _ in range(200)] == [None] * 200
        assert "200 calls in a minute are allowed; try again in 60 s" in str(await here.admit("ada"))
        time[0] = 122.0
        assert await here.admit("bob") is None
        assert len(counts[0]) == 1

    asyncio.run(check())
