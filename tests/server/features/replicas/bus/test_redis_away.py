"""A bus whose Redis is killed, stopped, emptied or full: nothing hangs, memory is bounded, and all comes back."""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
import uvloop
from msgspec.structs import replace

from tests.clients.raw_client import PATIENCE
from tests.server.features.replicas.bus.conftest import LONGEST, eventually, use_bus, with_prefix
from tests.servers.redis_server import RedisProcess, redis_server
from toolgate.server.base.bus.bus import Bus, BusUnreachableError, StreamEntry
from toolgate.server.base.bus.settings import BusSettings, LeaseTimes, StreamLimits
from toolgate.server.features.replicas.open_bus import open_bus
from toolgate.server.features.replicas.redis.commands import LATE

T = TypeVar("T")
QUICK = BusSettings(command=0.5)


def run(url: str, check: Callable[[Bus], Awaitable[None]], settings: BusSettings = QUICK) -> None:
    asyncio.run(use_bus(url, check, with_prefix(settings)))


async def is_back(bus: Bus) -> bool:
    return bus.health().is_reachable


async def reach(call: Callable[[], Awaitable[T]]) -> T:
    """Return what a call returns, once Redis answers it in time: a busy machine may be late."""
    while True:
        with contextlib.suppress(BusUnreachableError):
            return await call()


async def is_away(bus: Bus) -> bool:
    return not bus.health().is_reachable


def test_all_comes_back_after_redis_is_killed_and_started_again(own_redis: RedisProcess) -> None:
    async def check(bus: Bus) -> None:
        received: list[bytes] = []
        missed: list[str] = []
        for topic in ("list", "list", "tasks"):
            await bus.topics.subscribe(topic, received.append, lambda topic=topic: missed.append(topic)).confirm()
        own_redis.kill()
        await eventually(lambda: is_away(bus))
        with pytest.raises(BusUnreachableError, match=r"Redis at .* can't be reached: "):
            await bus.keys.get("a")
        bus.streams.append("session", "s", 1, b"appended while Redis was away")
        bus.topics.publish("list", b"1")
        assert bus.health().unwritten and bus.health().lag >= 0
        own_redis.start()
        await eventually(lambda: is_back(bus))
        await bus.streams.flush()
        assert await bus.streams.read("session", "s") == [StreamEntry(1, b"appended while Redis was away")]
        await eventually(lambda: has_all(missed, ["list", "list", "tasks"]))
        assert received == [b"1", b"1"]
        assert await bus.replica.is_alive(bus.replica.name) and bus.replica.holds_lease()
        assert await bus.replica.list_names() == [bus.replica.name]
        assert bus.health().unwritten == 0

    run(own_redis.url, check)


async def has_all(items: list[str], expected: list[str]) -> bool:
    return sorted(items) == expected


def test_a_short_loss_of_the_connection_is_waited_for(own_redis: RedisProcess) -> None:
    async def check(bus: Bus) -> None:
        await bus.keys.set("a", b"1", 60)
        own_redis.run("CLIENT", "KILL", "TYPE", "normal")
        own_redis.run("CLIENT", "KILL", "TYPE", "pubsub")
        assert await bus.keys.get("a") == b"1"
        await eventually(lambda: is_back(bus))

    run(own_redis.url, check, replace(QUICK, command=5.0))


def test_each_reply_goes_to_its_command_while_connections_are_killed(own_redis: RedisProcess) -> None:
    async def check(bus: Bus) -> None:
        for number in range(100):
            await bus.keys.set(str(number), b"%d" % number, 60)

        async def read(number: int) -> int:
            failures = 0
            for _ in range(50):
                try:
                    assert await bus.keys.get(str(number)) == b"%d" % number
                    assert await bus.keys.increment(f"own {number}", 60) > 0
                except BusUnreachableError:
                    failures += 1
            return failures

        reads = [asyncio.create_task(read(number)) for number in range(100)]
        for _ in range(10):
            await asyncio.sleep(0.02)
            await asyncio.to_thread(own_redis.run, "CLIENT", "KILL", "TYPE", "normal")
        await asyncio.gather(*reads)

    run(own_redis.url, check, replace(QUICK, command=2.0))


def test_each_of_thousands_of_commands_at_once_has_its_own_reply_beside_refused_ones(own_redis: RedisProcess) -> None:
    async def check(bus: Bus) -> None:
        await bus.keys.set("word", b"no number", 60)

        async def count(number: int) -> int:
            return await bus.keys.increment("word" if number % 7 == 0 else str(number), 60, by=number)

        results = await asyncio.gather(*map(count, range(5_000)), return_exceptions=True)
        assert [each for number, each in enumerate(results) if number % 7] == [n for n in range(5_000) if n % 7]
        refused = {str(each).partition(" refuses a command: ")[2] for each in results[::7]}
        assert len(refused) == 1 and refused.pop().startswith("ERR value is not an integer")
        assert bus.health().is_reachable

    run(own_redis.url, check, replace(QUICK, command=10.0))


def test_calls_end_within_the_time_limit_while_redis_is_stopped(own_redis: RedisProcess) -> None:
    async def check(bus: Bus) -> None:
        loop = asyncio.get_running_loop()
        subscription = bus.topics.subscribe("list", lambda _: None, lambda: None)
        await subscription.confirm()
        with own_redis.stopped():
            later = bus.topics.subscribe("other", lambda _: None, lambda: None)
            bus.streams.append("session", "s", 1, b"x")
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: bus.keys.get("a"),
                lambda: bus.keys.set("a", b"1", 60),
                lambda: bus.keys.increment("n", 60),
                lambda: bus.streams.read("session", "s"),
                lambda: bus.streams.delete("session"),
                lambda: bus.streams.flush(),
                lambda: bus.replica.is_alive("00000000"),
                lambda: bus.replica.list_names(),
                lambda: bus.mail.send("00000000", "echo", b""),
                lambda: later.confirm(),
            ]
            began = loop.time()
            errors = await asyncio.gather(*(call() for call in calls), return_exceptions=True)
            assert loop.time() - began < len(calls) / 2 * QUICK.command  # and not one after the other
            assert {type(error) for error in errors} == {BusUnreachableError}
            assert all(str(error).startswith("Redis at 127.0.0.1:") for error in errors)
            await eventually(lambda: is_away(bus))
            await asyncio.sleep(QUICK.command)
            began = loop.time()
            for call in calls[:5]:
                with pytest.raises(BusUnreachableError, match=r"does not answer within 0\.5 s"):
                    await call()
            assert loop.time() - began < 2 * QUICK.command  # it is known to be away, else five times as long
        await eventually(lambda: is_back(bus))
        await bus.keys.set("a", b"2", 60)
        assert await bus.keys.get("a") == b"2"
        await later.confirm()

    run(own_redis.url, check, replace(QUICK, streams=StreamLimits(size=2**20)))  # to read these takes no more time


def test_no_replica_is_found_dead_because_redis_was_stopped(own_redis: RedisProcess) -> None:
    lost: list[str] = []

    async def check() -> None:
        settings = with_prefix(QUICK)
        buses = [await open_bus(own_redis.url, settings, lambda: lost.append("lost")) for _ in range(3)]
        names = [bus.replica.name for bus in buses]
        for seconds in (1.5, 2.5, 4.0):
            with own_redis.stopped():
                await asyncio.sleep(seconds)
            judged: list[bool] = []

            async def judge(bus: Bus, judged: list[bool] = judged) -> bool:
                try:
                    judged.extend([await bus.replica.is_alive(name) for name in names])
                except BusUnreachableError:
                    return False
                return True

            await asyncio.gather(*(eventually(lambda bus=bus: judge(bus)) for bus in buses))
            assert judged and all(judged)
        for bus in buses:
            await eventually(lambda bus=bus: lives(bus))
            await bus.close()

    asyncio.run(asyncio.wait_for(check(), LONGEST))
    assert lost == []


def test_replicas_that_find_all_leases_over_judge_nobody_for_a_while(own_redis: RedisProcess) -> None:
    end_leases = (
        "for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[1], 1, name) end"
    )

    async def check() -> None:
        settings = with_prefix(replace(QUICK, lease=LeaseTimes(mercy=3.0)))
        first, second = [await open_bus(own_redis.url, settings) for _ in range(2)]
        own_redis.run("DEL", f"{settings.prefix}mercy")  # of the first replica on new data
        own_redis.run("EVAL", end_leases, "1", f"{settings.prefix}replicas")
        assert (
            await asyncio.gather(*(bus.replica.is_alive(second.replica.name) for bus in (first, second))) == [True] * 2
        )
        assert await first.replica.is_alive("00000000")
        await eventually(lambda: has_names(first, sorted((first.replica.name, second.replica.name))))

        async def is_judged() -> bool:
            return not await first.replica.is_alive("00000000")

        await eventually(is_judged)
        assert await first.replica.is_alive(second.replica.name)
        await first.close()
        await second.close()

    asyncio.run(asyncio.wait_for(check(), LONGEST))


def test_a_clock_that_was_set_back_leaves_no_dead_replica_alive(own_redis: RedisProcess) -> None:
    async def check() -> None:
        settings = with_prefix(QUICK)
        bus = await open_bus(own_redis.url, settings)
        own_redis.run("ZADD", f"{settings.prefix}replicas", "99999999999999", "00000000")
        own_redis.run("DEL", f"{settings.prefix}mercy")
        assert not await bus.replica.is_alive("00000000")
        assert await bus.replica.is_alive(bus.replica.name)
        await bus.close()

    asyncio.run(asyncio.wait_for(check(), LONGEST))


async def lives(bus: Bus) -> bool:
    return bus.replica.holds_lease()


def test_an_emptied_redis_costs_the_data_and_no_replica(own_redis: RedisProcess) -> None:
    lost: list[str] = []

    async def check() -> None:
        settings = with_prefix(QUICK)
        first, second = [await open_bus(own_redis.url, settings, lambda: lost.append("lost")) for _ in range(2)]
        received: list[bytes] = []
        await second.topics.subscribe("list", received.append, lambda: None).confirm()
        await first.keys.set("a", b"1", 60)
        first.streams.append("session", "s", 1, b"x")
        await first.streams.flush()
        own_redis.run("FLUSHALL")
        own_redis.run("SCRIPT", "FLUSH")
        assert await first.keys.get("a") is None
        assert await first.streams.read("session", "s") == []
        assert await first.replica.is_alive(second.replica.name)
        assert await second.replica.is_alive(first.replica.name)
        both = sorted((first.replica.name, second.replica.name))
        await eventually(lambda: has_names(first, both))
        first.topics.publish("list", b"x")
        first.streams.append("session", "s", 2, b"y")
        await first.streams.flush()
        assert await second.streams.read("session", "s") == [StreamEntry(2, b"y")]
        await eventually(lambda: has_received(received))
        await first.close()
        await second.close()

    asyncio.run(asyncio.wait_for(check(), LONGEST))
    assert lost == []


async def has_names(bus: Bus, names: list[str]) -> bool:
    return await bus.replica.list_names() == names


async def has_received(received: list[bytes]) -> bool:
    return bool(received)


def test_a_flood_while_redis_is_away_takes_bounded_memory_and_says_what_it_dropped(own_redis: RedisProcess) -> None:
    settings = replace(QUICK, max_unwritten=2 * 2**20, streams=StreamLimits(entries=10_000, size=2**20))

    async def check() -> None:
        shared = with_prefix(settings)
        bus, other = await open_bus(own_redis.url, shared), await open_bus(own_redis.url, shared)
        missed: list[str] = []
        await other.topics.subscribe("list", lambda _: None, lambda: missed.append("list")).confirm()
        with own_redis.stopped():
            before = resident_size()
            assert all(bus.streams.append("flood", "s", number, bytes(1_000)) for number in range(1, 50_001))
            others = [bus.streams.append(f"session {number}", "s", 1, bytes(1_000)) for number in range(50_000)]
            for _ in range(50_000):
                bus.topics.publish("list", bytes(1_000))
            assert resident_size() - before < 16 * 2**20
            assert 600 < others.count(True) < 1_000  # one key takes no more than Redis would hold of it
            health = bus.health()
            assert health.unwritten <= settings.max_unwritten
            assert health.dropped > 99_000
        await eventually(lambda: is_back(bus))
        await reach(bus.streams.flush)
        entries = await reach(lambda: other.streams.read("flood", "s"))
        assert [entry.number for entry in entries] == list(range(50_001 - len(entries), 50_001))
        assert len(entries) == 2**20 // 1_000
        await eventually(lambda: has_all(missed[:1], ["list"]))
        assert bus.health().unwritten == 0
        assert bus.streams.append("flood", "s", 60_000, b"x")
        await asyncio.gather(bus.close(), other.close())

    asyncio.run(asyncio.wait_for(check(), LONGEST))


def resident_size() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_too_many_commands_at_once_are_refused(own_redis: RedisProcess) -> None:
    async def check(bus: Bus) -> None:
        with own_redis.stopped():
            results = await asyncio.gather(*(bus.keys.get("a") for _ in range(20_500)), return_exceptions=True)
            texts = {str(result) for result in results}
            assert any("too slow: 20,000 commands wait for it" in text for text in texts)
            assert {type(result) for result in results} == {BusUnreachableError}

    run(own_redis.url, check)


def test_a_command_fails_in_a_process_that_is_always_late(own_redis: RedisProcess) -> None:
    async def check(bus: Bus) -> None:
        with own_redis.stopped():
            waiting = asyncio.ensure_future(bus.keys.get("a"))
            for _ in range(8):  # turns of the loop, each longer than a command may take
                await asyncio.sleep(0)
                time.sleep(QUICK.command + 2 * LATE)
            assert waiting.done() and isinstance(waiting.exception(), BusUnreachableError)

    run(own_redis.url, check)


def test_a_full_redis_is_named_and_entries_wait_for_room(own_redis: RedisProcess) -> None:
    async def check(bus: Bus) -> None:
        own_redis.run("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(BusUnreachableError, match=r"refuses a command: .*maxmemory"):
            await bus.keys.set("a", b"1", 60)
        bus.streams.append("session", "s", 1, b"x")
        with pytest.raises(BusUnreachableError):
            await bus.streams.flush()
        own_redis.run("CONFIG", "SET", "maxmemory", "0")

        async def is_written() -> bool:
            return await bus.streams.read("session", "s") == [StreamEntry(1, b"x")]

        await eventually(is_written)
        assert bus.health().is_reachable

    run(own_redis.url, check)


def test_a_redis_that_became_a_copy_is_left(own_redis: RedisProcess) -> None:
    async def check(bus: Bus) -> None:
        own_redis.run("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(BusUnreachableError, match=r"is a copy that can't be written|was lost before its reply"):
            await bus.keys.set("a", b"1", 60)
        own_redis.run("REPLICAOF", "NO", "ONE")

        async def is_written() -> bool:
            try:
                await bus.keys.set("a", b"1", 60)
            except BusUnreachableError:
                return False
            return True

        await eventually(is_written)

    run(own_redis.url, check)


def test_a_bus_opens_without_redis_and_works_when_it_comes(tmp_path_factory: pytest.TempPathFactory) -> None:
    async def check(bus: Bus) -> None:
        assert not bus.health().is_reachable
        with pytest.raises(BusUnreachableError):
            await bus.keys.get("a")
        missed: list[str] = []
        subscription = bus.topics.subscribe("list", lambda _: None, lambda: missed.append("list"))
        with pytest.raises(BusUnreachableError):
            await subscription.confirm()
        server.start()
        await eventually(lambda: is_back(bus))
        await subscription.confirm()
        await eventually(lambda: has_all(missed, ["list"]))
        await bus.keys.set("a", b"1", 60)
        await eventually(lambda: lives(bus))

    with redis_server() as server:
        server.kill()
        run(server.url, check)


def test_a_bus_closes_in_time_while_redis_is_stopped(own_redis: RedisProcess) -> None:
    async def check() -> None:
        bus = await open_bus(own_redis.url, with_prefix(QUICK))
        with own_redis.stopped():
            bus.streams.append("session", "s", 1, b"x")
            calls = [asyncio.create_task(bus.keys.get("a")) for _ in range(10)]
            await asyncio.sleep(0)
            began = time.monotonic()
            await bus.close()
            assert time.monotonic() - began < PATIENCE
            errors = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(error) for error in errors} == {BusUnreachableError}
            with pytest.raises(BusUnreachableError, match="the server ends"):
                await bus.keys.get("a")
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(check())


def test_a_bus_that_closes_writes_what_waits(own_redis: RedisProcess) -> None:
    async def check() -> None:
        settings = with_prefix()
        bus, other = await open_bus(own_redis.url, settings), await open_bus(own_redis.url, settings)
        for number in range(1, 1_001):
            bus.streams.append("session", "s", number, b"x")
        await bus.close()
        assert len(await other.streams.read("session", "s")) == 1_000
        await other.close()

    asyncio.run(check())


def test_a_connection_that_is_lost_on_uvloop_is_named_without_a_traceback(
    own_redis: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """uvloop raises errors of its own when something is written to such a connection."""

    async def check(bus: Bus) -> None:
        async def use(number: int) -> None:
            while not ended.is_set():
                try:
                    bus.topics.publish("list", b"x" * 10_000)
                    await bus.keys.set(str(number), b"x" * 10_000, 60)
                except BusUnreachableError as error:
                    assert str(error).startswith("Redis at 127.0.0.1:")

        ended = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(use(number))
            for _ in range(5):
                await asyncio.to_thread(own_redis.run, "CLIENT", "KILL", "TYPE", "normal")
                await asyncio.to_thread(own_redis.run, "CLIENT", "KILL", "TYPE", "pubsub")
            own_redis.kill()
            await eventually(lambda: is_away(bus))
            own_redis.start()
            await eventually(lambda: is_back(bus))
            ended.set()

    uvloop.run(use_bus(own_redis.url, check, with_prefix(QUICK)))
    assert any("Redis at 127.0.0.1:" in record.message for record in caplog.records)
    assert [record for record in caplog.records if record.exc_info] == []
    assert {record.name for record in caplog.records} == {"toolgate.bus"}
