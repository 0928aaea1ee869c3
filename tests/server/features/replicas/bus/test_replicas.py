"""Several replicas on one Redis: in one process, or each in its own, killed and stopped."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from tests.server.features.replicas.bus.conftest import LONGEST, STEADY, eventually, with_prefix
from tests.server.features.replicas.bus.replica_process import ReplicaProcess, replica_process
from tests.servers.redis_server import RedisProcess
from toolgate.server.base.bus.bus import Bus, NoReplyError, StreamEntry, UndeliveredError
from toolgate.server.base.bus.settings import BusSettings, LeaseTimes
from toolgate.server.features.replicas.open_bus import open_bus

NO_MERCY = BusSettings(lease=STEADY)  # these replicas are not the first after a loss of data


@asynccontextmanager
async def two_buses(url: str, settings: BusSettings) -> AsyncIterator[tuple[Bus, Bus]]:
    async with asyncio.timeout(LONGEST):
        buses = await asyncio.gather(open_bus(url, settings), open_bus(url, settings))
        try:
            yield buses
        finally:
            await asyncio.gather(*(bus.close() for bus in buses))


def run_two(
    server: RedisProcess, check: Callable[[Bus, Bus], Awaitable[None]], settings: BusSettings = NO_MERCY
) -> None:
    async def begin() -> None:
        async with two_buses(server.unix_url, with_prefix(settings)) as (first, second):
            await check(first, second)

    asyncio.run(begin())


def test_replicas_share_keys_and_streams(shared_redis: RedisProcess) -> None:
    async def check(first: Bus, second: Bus) -> None:
        await first.keys.set("a", b"1", 60)
        assert await second.keys.take("a") == b"1"
        assert await first.keys.get("a") is None
        first.streams.append("session", "s", 1, b"x")
        await first.streams.flush()
        second.streams.append("session", "s", 2, b"y")
        await second.streams.flush()
        both = [StreamEntry(1, b"x"), StreamEntry(2, b"y")]
        assert await first.streams.read("session", "s") == await second.streams.read("session", "s") == both

    run_two(shared_redis, check)


def test_one_of_two_replicas_wins_each_of_two_hundred_races(shared_redis: RedisProcess) -> None:
    async def check(first: Bus, second: Bus) -> None:
        for number in range(200):
            key = str(number)
            won = await asyncio.gather(*(bus.keys.set_if_absent(key, b"x", 60) for bus in (first, second)))
            taken = await asyncio.gather(*(bus.keys.take(key) for bus in (first, second)))
            assert sorted(won) == [False, True] and taken.count(b"x") == 1

    run_two(shared_redis, check)


def test_a_message_reaches_subscribers_of_other_replicas_in_order(shared_redis: RedisProcess) -> None:
    async def check(first: Bus, second: Bus) -> None:
        here: list[bytes] = []
        there: list[bytes] = []
        first.topics.subscribe("list", here.append, lambda: None)
        subscription = second.topics.subscribe("list", there.append, lambda: None)
        await subscription.confirm()
        for number in range(500):
            first.topics.publish("list", b"%d" % number)
        await eventually(lambda: has_length(there, 500))
        assert here == there == [b"%d" % number for number in range(500)]
        subscription.close()
        first.topics.publish("list", b"after")
        again = second.topics.subscribe("list", there.append, lambda: None)
        await again.confirm()
        first.topics.publish("list", b"again")
        await eventually(lambda: has_last(there, b"again"))

    run_two(shared_redis, check)


async def has_length(items: list[bytes], length: int) -> bool:
    return len(items) == length


async def has_last(items: list[bytes], last: bytes) -> bool:
    return items[-1] == last


def test_many_messages_to_one_replica_each_get_their_own_reply(shared_redis: RedisProcess) -> None:
    async def check(first: Bus, second: Bus) -> None:
        async def slow_echo(data: bytes) -> bytes:
            await asyncio.sleep(0.01 * (data[-1] % 3))
            return data

        second.mail.receive("echo", slow_echo)
        numbers = [b"%d" % number for number in range(300)]
        assert await asyncio.gather(*(first.mail.send(second.replica.name, "echo", n) for n in numbers)) == numbers
        large = bytes(16 * 2**20)
        replies = await asyncio.gather(*(first.mail.send(second.replica.name, "echo", large, 20) for _ in range(6)))
        assert all(reply == large for reply in replies)

    run_two(shared_redis, check)


def test_a_replica_with_too_much_mail_says_so(shared_redis: RedisProcess) -> None:
    async def check(first: Bus, second: Bus) -> None:
        free = asyncio.Event()

        async def wait(_: bytes) -> bytes:
            await free.wait()
            return b"done"

        second.mail.receive("wait", wait)
        sends = [asyncio.create_task(first.mail.send(second.replica.name, "wait", b"", 20)) for _ in range(1_001)]
        done, _ = await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(NoReplyError, match="too much mail"):
            await done.pop()
        free.set()
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert results.count(b"done") == 1_000

    run_two(shared_redis, check)


def test_a_closed_replica_is_dead_at_once_and_mail_to_it_undelivered(shared_redis: RedisProcess) -> None:
    async def check(first: Bus, second: Bus) -> None:
        assert await first.replica.is_alive(second.replica.name)
        assert await first.replica.list_names() == sorted((first.replica.name, second.replica.name))
        await second.close()
        assert not await first.replica.is_alive(second.replica.name)
        assert await first.replica.list_names() == [first.replica.name]
        with pytest.raises(UndeliveredError):
            await first.mail.send(second.replica.name, "echo", b"")

    run_two(shared_redis, check)


def test_a_sender_that_closes_has_no_reply(shared_redis: RedisProcess) -> None:
    async def check(first: Bus, second: Bus) -> None:
        started = asyncio.Event()

        async def hang(_: bytes) -> bytes:
            started.set()
            return await asyncio.get_running_loop().create_future()

        second.mail.receive("hang", hang)
        sending = asyncio.create_task(first.mail.send(second.replica.name, "hang", b""))
        await started.wait()
        await first.close()
        with pytest.raises(NoReplyError, match="this replica ends"):
            await sending

    run_two(shared_redis, check)


def test_a_replica_that_closes_while_it_handles_mail_gives_no_reply(shared_redis: RedisProcess) -> None:
    async def check(first: Bus, second: Bus) -> None:
        started = asyncio.Event()

        async def hang(_: bytes) -> bytes:
            started.set()
            return await asyncio.get_running_loop().create_future()

        second.mail.receive("hang", hang)
        sending = asyncio.create_task(first.mail.send(second.replica.name, "hang", b"", 20))
        await started.wait()
        await second.close()
        with pytest.raises(NoReplyError, match="has ended without a reply"):
            await sending

    run_two(shared_redis, check)


def test_callers_that_are_cancelled_anywhere_leave_the_bus_whole(shared_redis: RedisProcess) -> None:
    async def check(first: Bus, second: Bus) -> None:
        async def echo(data: bytes) -> bytes:
            await asyncio.sleep(0)
            return data

        second.mail.receive("echo", echo)
        subscription = first.topics.subscribe("list", lambda _: None, lambda: None)

        async def work(number: int) -> None:
            first.streams.append("session", f"s{number % 7}", number + 1, b"x")
            await first.keys.set("a", b"%d" % number, 60)
            assert await first.mail.send(second.replica.name, "echo", b"%d" % number) == b"%d" % number
            await first.streams.flush()
            await subscription.confirm()

        for turns in range(60):
            tasks = [asyncio.create_task(work(number)) for number in range(20)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(result) for result in results[1::2]} == {type(None)}
            assert {type(result) for result in results[::2]} <= {asyncio.CancelledError, type(None)}
        assert await second.keys.get("a") is not None
        assert first.health().unwritten == 0 and first.health().is_reachable

    run_two(shared_redis, check)


def use_process(server: RedisProcess, check: Callable[[Bus, ReplicaProcess], Awaitable[None]]) -> None:
    """Run `check` with a bus here and a replica in another process."""
    settings = replace(with_prefix(), lease=LeaseTimes(mercy=0.001))

    async def begin(process: ReplicaProcess) -> None:
        async with asyncio.timeout(LONGEST):
            bus = await open_bus(server.url, settings)
            try:
                await check(bus, process)
            finally:
                await bus.close()

    with replica_process(server.url, settings.prefix) as process:
        server.run("DEL", f"{settings.prefix}mercy")
        asyncio.run(begin(process))


def test_two_processes_reach_each_other(shared_redis: RedisProcess) -> None:
    async def check(bus: Bus, process: ReplicaProcess) -> None:
        received: list[bytes] = []
        await bus.topics.subscribe("news", received.append, lambda: None).confirm()
        reply = await bus.mail.send(process.name, "echo", b"hello")
        assert reply == f"hello from {process.process.pid}".encode()
        await bus.mail.send(process.name, "append", b"theirs")
        assert await bus.streams.read("session", process.name) == [StreamEntry(1, b"theirs")]
        await eventually(lambda: has_length(received, 1))
        assert process.read("news")["data"] == "appended"
        bus.topics.publish("news", b"ours")
        assert (await asyncio.to_thread(process.read, "news"))["data"] == "ours"

    use_process(shared_redis, check)


def test_a_killed_replica_has_no_mail_at_once_and_no_lease_within_three_seconds(shared_redis: RedisProcess) -> None:
    async def check(bus: Bus, process: ReplicaProcess) -> None:
        waiting = asyncio.create_task(bus.mail.send(process.name, "hang", b"", seconds=20))
        await asyncio.to_thread(process.read, "hanging")
        process.signal(signal.SIGKILL)
        process.process.wait(5)
        with pytest.raises(UndeliveredError):
            await bus.mail.send(process.name, "echo", b"")
        assert await bus.replica.is_alive(process.name)
        await eventually(lambda: is_dead(bus, process.name), seconds=6.0)
        with pytest.raises(NoReplyError, match="has ended without a reply"):
            await waiting

    use_process(shared_redis, check)


async def is_dead(bus: Bus, name: str) -> bool:
    return not await bus.replica.is_alive(name)


def test_a_frozen_replica_is_dead_within_three_seconds_and_learns_it(shared_redis: RedisProcess) -> None:
    async def check(bus: Bus, process: ReplicaProcess) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        process.signal(signal.SIGSTOP)
        unanswered = asyncio.create_task(bus.mail.send(process.name, "append", b"late", seconds=20))
        await eventually(lambda: is_dead(bus, process.name), seconds=6.0)
        await asyncio.sleep(4 - (loop.time() - began))
        with pytest.raises(NoReplyError, match="has ended without a reply"):
            await unanswered
        process.signal(signal.SIGCONT)
        await asyncio.to_thread(process.read, "lost")
        assert await bus.streams.read("session", process.name) == []  # it did nothing for its old mail
        assert await is_dead(bus, process.name)
        assert bus.replica.holds_lease()

    use_process(shared_redis, check)


def test_a_replica_that_ends_is_dead_at_once(shared_redis: RedisProcess) -> None:
    async def check(bus: Bus, process: ReplicaProcess) -> None:
        process.signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.process.wait, 10) == 0
        assert await is_dead(bus, process.name)

    use_process(shared_redis, check)
