"""Notices at two replicas: the next result at either has each once."""

import asyncio
from collections.abc import Callable

import pytest

from tests.server.features.replicas.bus.conftest import shared_redis as shared_redis
from tests.server.features.replicas.bus.pairs import run_pair as run_pair
from toolgate.server.base.bus.bus import Bus, BusUnreachableError
from toolgate.server.base.bus.memory_bus import MemoryBus
from toolgate.server.base.bus.memory_keys import MemoryKeys
from toolgate.server.base.bus.settings import BusSettings
from toolgate.server.features.replicas.services.notices import WAITING, SharedNotices
from toolgate.tools.api.context.notices import MAX_NOTICES

Run = Callable[..., None]


class Replica:
    """The notices of `ada` at one replica."""

    def __init__(self, bus: Bus) -> None:
        self.shared = SharedNotices(bus)
        self.notices = self.shared.create_notices("ada")

    async def call(self, *dropped: str, scope: str = "") -> list[str]:
        """Return the news in the result of a call. `dropped`: what the call makes needless."""
        for key in dropped:
            self.notices.drop(key)
        await self.shared.fetch("ada", self.notices)
        news = self.notices.take(lambda wanted: scope in ("", wanted))
        self.shared.give_back("ada", self.notices)
        return [notice.text for notice in news.values()]

    async def add(self, *keys: str) -> None:
        for key in keys:
            self.notices.add(key, key, f"scope of {key}")
        await asyncio.sleep(0.02)


def test_the_next_result_at_any_replica_has_the_news_once(run_pair: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        here, there = Replica(one), Replica(two)
        for bus in (one, two):
            await bus.topics.subscribe(WAITING, lambda _: None, lambda: None).confirm()
        await here.add("a")
        await there.add("b", "a")
        calls = await asyncio.gather(there.call(), here.call(), there.call())
        assert [news for news in calls if news] == [["b", "a (2 times)"]]
        assert await here.call() == []

    run_pair(check)


@pytest.mark.parametrize("times", [20, pytest.param(200, marks=pytest.mark.soak)])
def test_of_two_results_one_has_it(run_pair: Run, times: int) -> None:
    async def check(one: Bus, two: Bus) -> None:
        here, there = Replica(one), Replica(two)
        for bus in (one, two):
            await bus.topics.subscribe(WAITING, lambda _: None, lambda: None).confirm()
        for number in range(times):
            await here.call()
            await there.call()
            await here.add(str(number))
            news = await asyncio.gather(here.call(), there.call())
            assert sorted(news) == [[], [str(number)]]

    run_pair(check)


def test_what_a_call_may_not_hear_or_has_made_needless_is_left_or_dropped(run_pair: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        here, there = Replica(one), Replica(two)
        for bus in (one, two):
            await bus.topics.subscribe(WAITING, lambda _: None, lambda: None).confirm()
        await here.add("a", "b", "c")
        assert await there.call("a", scope="scope of b") == ["b"]
        await asyncio.sleep(0.05)
        assert await here.call() == ["c"]

    run_pair(check)


def test_a_notice_in_place_of_a_dropped_one_is_delivered_where_it_was_added(run_pair: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        here, there = Replica(one), Replica(two)
        here.notices.drop("a")
        await here.add("a")
        assert await here.call() == ["a"]
        assert await there.call("a") == []

    run_pair(check)


def test_the_oldest_of_too_many_are_dropped(run_pair: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        here, there = Replica(one), Replica(two)
        for bus in (one, two):
            await bus.topics.subscribe(WAITING, lambda _: None, lambda: None).confirm()
        await here.add(*map(str, range(MAX_NOTICES)))
        await there.add(*map(str, range(MAX_NOTICES, 2 * MAX_NOTICES)))
        assert await here.call() == list(map(str, range(MAX_NOTICES, 2 * MAX_NOTICES)))

    run_pair(check)


def test_a_call_without_news_costs_no_command(run_pair: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        here = Replica(one)
        assert await here.call() == []
        await one.keys.set("notices ada", b"unseen: no message told of it", 60)
        assert await here.call() == []

    run_pair(check)


def test_without_redis_a_replica_delivers_its_own() -> None:
    class Away(MemoryKeys):
        async def get(self, key: str) -> bytes | None:
            raise BusUnreachableError("Redis is away")

        async def take(self, key: str) -> bytes | None:
            raise BusUnreachableError("Redis is away")

    async def check() -> None:
        bus = MemoryBus(BusSettings())
        bus.keys = Away()
        here = Replica(bus)
        await here.add("a")
        assert await here.call() == ["a"]

    asyncio.run(check())
