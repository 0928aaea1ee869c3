"""Guesses at two replicas: one count, on each kind of bus."""

import asyncio
import logging
import re
from collections.abc import Callable

import pytest

from tests.server.features.replicas.bus.conftest import shared_redis as shared_redis
from tests.server.features.replicas.bus.pairs import run_pair as run_pair
from toolgate.server.auth.address_blocks import AddressLimiter
from toolgate.server.auth.login.accounts import PairingCode
from toolgate.server.auth.login.throttle import Backoff, GuessLimiter, Throttle, ThrottledError
from toolgate.server.base.bus.bus import Bus, BusUnreachableError
from toolgate.server.base.bus.memory_keys import MemoryKeys
from toolgate.server.features.replicas.services.fallback import FallbackCounters

Run = Callable[..., None]
NAME, ADDRESS, ALL = Backoff(free=3, longest=8), Backoff(free=6, longest=8), Backoff(free=50, longest=2)


def guesses(bus: Bus) -> GuessLimiter:
    return GuessLimiter(bus.keys, NAME, ADDRESS, ALL)


async def count(limiters: list[GuessLimiter], name: str, address: str) -> int:
    """Return how many guesses in a row are allowed, at each replica in turn."""
    for number in range(100):
        try:
            await limiters[number % len(limiters)].take(name, address)
        except ThrottledError:
            return number
    return 100


def test_guesses_at_a_name_count_together(run_pair: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        both = [guesses(one), guesses(two)]
        assert await count(both, "ada", "192.0.2.1") == 3
        assert await count(both, "ada", "198.51.100.1") == 0
        assert await count(both, "bob", "198.51.100.1") == 3

    run_pair(check)


def test_guesses_at_once_gain_nothing(run_pair: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        both = [guesses(one), guesses(two)]
        tries = (both[number % 2].take("ada", f"192.0.{number}.1") for number in range(40))
        results = await asyncio.gather(*tries, return_exceptions=True)
        assert 1 <= sum(not isinstance(each, ThrottledError) for each in results) <= 3

    run_pair(check)


def test_a_right_guess_is_forgiven_and_its_address_known_everywhere(run_pair: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        here, there = guesses(one), guesses(two)
        for _ in range(2):
            await here.take("ada", "192.0.2.1")
        await there.forgive(await there.take("ada", "192.0.2.1"))
        assert await count([here, there], "ada", "198.51.100.1") == 3
        await there.take("ada", "192.0.2.1")  # others' guesses do not lock her out where she was right before
        assert await count([here], "bob", "192.0.2.1") == 3  # of the address none is left over

    run_pair(check)


def test_a_wait_ends() -> None:
    async def check() -> None:
        clock = [0.0]
        keys = MemoryKeys(lambda: clock[0])
        throttle = Throttle(keys)
        paces = (("a", Backoff(free=1, longest=4, forget=100)),)
        for wait in (1, 2, 4, 4):
            await throttle.take(paces)
            with pytest.raises(ThrottledError) as found:
                await throttle.take(paces)
            assert found.value.wait == wait
            clock[0] += wait
        clock[0] += 100
        await throttle.take(paces)
        with pytest.raises(ThrottledError) as found:
            await throttle.take(paces)
        assert found.value.wait == 1

    asyncio.run(check())


def test_tries_by_address_count_together(run_pair: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        both = [AddressLimiter("tests", 3, 100, bus.keys) for bus in (one, two)]
        assert [await both[number % 2].take("192.0.2.1") for number in range(5)] == [True, True, True, False, False]
        assert [await both[number % 2].take("192.0.2.2") for number in range(4)] == [True, True, True, False]
        assert not await both[0].take("192.0.2.3")  # the block has twice as many
        assert await both[0].take("198.51.100.1")
        assert await both[1].take("x" * 10_000)

    run_pair(check)


def test_without_redis_each_counts_for_itself() -> None:
    class Away(MemoryKeys):
        async def get(self, key: str) -> bytes | None:
            raise BusUnreachableError("Redis is away")

        async def increment(self, key: str, seconds: float, by: int = 1) -> int:
            raise BusUnreachableError("Redis is away")

    async def check() -> None:
        counters = FallbackCounters(Away(), MemoryKeys())
        limiter = AddressLimiter("tests", 2, 100, counters)
        assert [await limiter.take("192.0.2.1") for _ in range(3)] == [True, True, False]
        throttle = Throttle(counters)
        await throttle.take((("a", Backoff(free=1, longest=4)),))
        with pytest.raises(ThrottledError):
            await throttle.take((("a", Backoff(free=1, longest=4)),))

    asyncio.run(check())


def test_all_replicas_take_the_one_pairing_code(run_pair: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def check(one: Bus, two: Bus) -> None:
        here, there = (PairingCode("https://gate.example/login", keys=bus.keys) for bus in (one, two))
        links = await asyncio.gather(here.offer(), there.offer(), here.offer())
        assert sorted(map(bool, links)) == [False, False, True]
        (code,) = re.findall(r"pairing code ([A-Z2-7-]+)", caplog.text)
        for pairing in (here, there):
            assert not await pairing.verify("A" * 26, "192.0.2.1")
            assert await pairing.verify(code, "192.0.2.1")
        await there.expire()
        assert not await here.verify(code, "192.0.2.1")

    caplog.set_level(logging.WARNING)
    run_pair(check)
