"""Several deployments on one Redis, and replicas of an earlier release beside those of this one."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from msgspec.structs import replace

from tests.server.features.replicas.bus.conftest import LONGEST, STEADY, eventually
from tests.servers.redis_server import RedisProcess
from toolgate.server.base.bus.bus import Bus, UndeliveredError
from toolgate.server.base.bus.settings import PREFIX, BusSettings, name_prefix
from toolgate.server.features.replicas.open_bus import open_bus
from toolgate.server.features.replicas.redis.description import describe_redis
from toolgate.server.features.replicas.redis_url import parse_redis_url

EARLIER = BusSettings(lease=STEADY)  # its prefix is that of all deployments
HERE = replace(EARLIER, prefix=name_prefix("a" * 16), meets_earlier=True)
THERE = replace(HERE, prefix=name_prefix("b" * 16))


@asynccontextmanager
async def buses(server: RedisProcess, *settings: BusSettings) -> AsyncIterator[list[Bus]]:
    async with asyncio.timeout(LONGEST):
        opened = [await open_bus(server.unix_url, each) for each in settings]
        try:
            yield opened
        finally:
            await asyncio.gather(*(bus.close() for bus in opened))


def run_with(server: RedisProcess, *settings: BusSettings, check: Callable[..., Awaitable[None]]) -> None:
    async def begin() -> None:
        async with buses(server, *settings) as opened:
            await check(*opened)

    asyncio.run(begin())


def test_nothing_crosses_between_two_deployments(own_redis: RedisProcess) -> None:
    async def check(here: Bus, there: Bus) -> None:
        await here.keys.set("session", b"secret", 60)
        assert await there.keys.get("session") is None
        here.streams.append("session", "s", 1, b"secret")
        await here.streams.flush()
        assert await there.streams.read("session", "s") == []
        heard: list[bytes] = []
        await there.topics.subscribe("updates", heard.append, lambda: None).confirm()
        here.topics.publish("updates", b"secret")
        there.topics.publish("updates", b"own")
        await eventually(lambda: asyncio.sleep(0, bool(heard)))
        assert heard == [b"own"]
        there.mail.receive("post", lambda data: asyncio.sleep(0, data))
        assert await is_undelivered(here, there)
        assert await here.replica.list_names() == [here.replica.name]
        assert await there.replica.list_names() == [there.replica.name]

    run_with(own_redis, HERE, THERE, check=check)
    names = own_redis.run("KEYS", "*").decode().split("\r\n")[2::2]
    assert {name for name in names if not name.startswith((HERE.prefix, THERE.prefix))} == {f"{PREFIX}deployments"}


async def is_undelivered(sender: Bus, receiver: Bus) -> bool:
    try:
        await sender.mail.send(receiver.replica.name, "post", b"secret")
    except UndeliveredError:
        return True
    return False


def test_doctor_finds_the_servers_of_each_deployment(own_redis: RedisProcess) -> None:
    async def check(*_: Bus) -> None:
        url = parse_redis_url(own_redis.unix_url)
        own = await describe_redis(url, "a" * 16)
        assert (own.servers, own.deployment, own.others) == (2, "a" * 16, {"b" * 16: 1})
        first = await describe_redis(url, None)
        assert (first.servers, first.deployment, first.others) == (0, "", {"a" * 16: 2, "b" * 16: 1})

    run_with(own_redis, HERE, HERE, THERE, check=check)


def test_doctor_finds_servers_of_an_earlier_release(own_redis: RedisProcess) -> None:
    async def check(_earlier: Bus, new: Bus) -> None:
        await eventually(lambda: lists_earlier(new))
        found = await describe_redis(parse_redis_url(own_redis.unix_url), "a" * 16)
        assert (found.servers, found.others) == (1, {"": 1})

    run_with(own_redis, EARLIER, HERE, check=check)


async def lists_earlier(bus: Bus) -> bool:
    return bool(bus.replica.list_earlier())


# -- a rolling upgrade


def test_new_replicas_and_earlier_ones_know_of_each_other_that_they_live(own_redis: RedisProcess) -> None:
    async def check(earlier: Bus, first: Bus, second: Bus) -> None:
        for new in (first, second):
            await eventually(lambda new=new: lists_earlier(new))  # type: ignore[misc]  # bound now
            assert new.replica.list_earlier() == {earlier.replica.name}
            assert await new.replica.is_alive(earlier.replica.name)
            assert not await new.replica.find_ended(earlier.replica.name)
            assert await earlier.replica.is_alive(new.replica.name)
        assert await first.replica.list_names() == sorted(bus.replica.name for bus in (first, second))

    run_with(own_redis, EARLIER, HERE, HERE, check=check)


def test_a_new_replica_learns_of_an_earlier_one_that_starts_later(own_redis: RedisProcess) -> None:
    async def check(new: Bus) -> None:
        assert new.replica.list_earlier() == frozenset()
        async with buses(own_redis, EARLIER) as (earlier,):
            await eventually(lambda: lists_earlier(new))
            assert await earlier.replica.is_alive(new.replica.name)
            assert await new.replica.is_alive(earlier.replica.name)

    run_with(own_redis, HERE, check=check)


def test_the_end_of_one_is_seen_by_the_other(own_redis: RedisProcess) -> None:
    async def check() -> None:
        async with buses(own_redis, EARLIER) as (earlier,):
            async with buses(own_redis, HERE) as (ended,):
                await eventually(lambda: lists_earlier(ended))
            assert not await earlier.replica.is_alive(ended.replica.name)
            async with buses(own_redis, HERE) as (new,):
                await eventually(lambda: lists_earlier(new))
                assert await new.replica.is_alive(earlier.replica.name)
                await earlier.close()

                async def is_dead() -> bool:
                    return not await new.replica.is_alive(earlier.replica.name)

                await eventually(is_dead)
                assert await new.replica.is_alive(new.replica.name)

    run_with(own_redis, check=check)


def test_a_new_replica_that_an_earlier_one_found_dead_ends(own_redis: RedisProcess) -> None:
    async def check(_earlier: Bus) -> None:
        lost = asyncio.Event()
        new = await open_bus(own_redis.unix_url, HERE, lost.set)
        try:
            await eventually(lambda: lists_earlier(new))
            verdict = f"-{time.time() * 1_000:.0f}"
            own_redis.run("ZADD", f"{PREFIX}replicas", verdict, new.replica.name)
            await lost.wait()
            assert not new.replica.holds_lease()
        finally:
            await new.close()

    run_with(own_redis, EARLIER, check=check)
