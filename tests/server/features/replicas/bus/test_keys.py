"""Keys with an end, on each kind of bus."""

import asyncio
from collections.abc import Callable

import pytest

from tests.server.features.replicas.bus.conftest import eventually
from toolgate.server.base.bus.bus import MAX_DATA, MAX_NAME, Bus, KeyLimit
from toolgate.server.base.bus.memory_keys import MIN_SWEEP, MemoryKeys

Run = Callable[..., None]


def test_a_value_is_read_as_it_was_set(run: Run) -> None:
    async def check(bus: Bus) -> None:
        assert await bus.keys.get("a") is None
        await bus.keys.set("a", bytes(range(256)), 60)
        assert await bus.keys.get("a") == bytes(range(256))
        await bus.keys.set("a", b"", 60)
        assert await bus.keys.get("a") == b""

    run(check)


def test_a_value_ends_after_its_time_and_a_touched_one_later(run: Run) -> None:
    async def check(bus: Bus) -> None:
        await bus.keys.set("short", b"1", 0.15)
        await bus.keys.set("touched", b"2", 0.15)
        assert await bus.keys.touch("touched", 60)
        assert not await bus.keys.touch("absent", 60)

        async def has_ended() -> bool:
            return await bus.keys.get("short") is None

        assert not await has_ended()
        await eventually(has_ended)
        assert await bus.keys.get("touched") == b"2"

    run(check)


def test_several_values_are_read_and_touched_at_once(run: Run) -> None:
    async def check(bus: Bus) -> None:
        await bus.keys.set("session", b"record", 0.15)
        await bus.keys.set("plan", b"on", 60)
        read = await bus.keys.get_many(("session", "absent", "plan"), touch={"session": 60, "absent": 60})
        assert read == [b"record", None, b"on"]
        await asyncio.sleep(0.2)  # past the first end
        assert await bus.keys.get_many(["session"]) == [b"record"]
        assert await bus.keys.get_many([]) == []

    run(check)


def test_only_the_first_sets_what_is_absent(run: Run) -> None:
    async def check(bus: Bus) -> None:
        won = await asyncio.gather(*(bus.keys.set_if_absent("nonce", b"%d" % n, 60) for n in range(20)))
        assert won.count(True) == 1
        assert await bus.keys.get("nonce") == b"%d" % won.index(True)

    run(check)


def test_a_value_is_replaced_only_as_it_was_read(run: Run) -> None:
    async def check(bus: Bus) -> None:
        await bus.keys.set("record", b"1", 60)
        won = await asyncio.gather(*(bus.keys.replace("record", b"1", b"2", 60) for _ in range(5)))
        assert won.count(True) == 1
        assert not await bus.keys.replace("absent", b"1", b"2", 60)
        assert await bus.keys.get_many(("record", "absent")) == [b"2", None]

    run(check)


def test_one_caller_takes_a_value(run: Run) -> None:
    async def check(bus: Bus) -> None:
        await bus.keys.set("code", b"x", 60)
        taken = await asyncio.gather(*(bus.keys.take("code") for _ in range(20)))
        assert taken.count(b"x") == 1 and taken.count(None) == 19
        assert await bus.keys.get("code") is None

    run(check)


def test_values_are_deleted_and_counted(run: Run) -> None:
    async def check(bus: Bus) -> None:
        await bus.keys.set("a", b"1", 60)
        await bus.keys.set("b", b"2", 60)
        assert await bus.keys.delete("a", "b", "absent") == 2
        assert await bus.keys.delete() == 0
        assert await bus.keys.get_many(("a", "b")) == [None, None]

    run(check)


def test_a_number_is_incremented_and_ends_when_its_first_time_is_over(run: Run) -> None:
    async def check(bus: Bus) -> None:
        assert await bus.keys.increment("tries", 0.2) == 1
        assert await bus.keys.increment("tries", 60, by=5) == 6
        assert await bus.keys.increment("tries", 60, by=-2) == 4
        assert await bus.keys.get("tries") == b"4"

        async def has_ended() -> bool:
            return await bus.keys.get("tries") is None

        await eventually(has_ended)
        assert await bus.keys.increment("tries", 60) == 1

    run(check)


def test_no_more_are_counted_than_the_limit_however_many_try_at_once(run: Run) -> None:
    async def check(bus: Bus) -> None:
        limit = KeyLimit("calls", 7, 60)
        waits = await asyncio.gather(*(bus.keys.count([limit]) for _ in range(30)))
        assert waits.count(0.0) == 7
        assert all(59 < wait <= 60 for wait in waits if wait)
        assert await bus.keys.get("calls") == b"7"

    run(check)


def test_what_one_of_several_limits_refuses_counts_at_none(run: Run) -> None:
    async def check(bus: Bus) -> None:
        wide, narrow = KeyLimit("wide", 10, 60), KeyLimit("narrow", 1, 0.3)
        assert await bus.keys.count((wide, narrow)) == 0
        assert 0 < await bus.keys.count((wide, narrow)) <= 0.3
        assert await bus.keys.get_many(("wide", "narrow")) == [b"1", b"1"]

        async def is_free() -> bool:
            return await bus.keys.count((wide, narrow)) == 0

        await eventually(is_free)
        assert await bus.keys.get_many(("wide", "narrow")) == [b"2", b"1"]
        assert await bus.keys.count([KeyLimit("never", 0, 5)]) == 5

    run(check)


@pytest.mark.parametrize("key", ["", "é" * (MAX_NAME // 2 + 1)], ids=["empty", "long"])
def test_a_name_out_of_bounds_is_refused(run: Run, key: str) -> None:
    async def check(bus: Bus) -> None:
        for command in (bus.keys.get(key), bus.keys.set(key, b"", 1), bus.keys.take(key), bus.keys.increment(key, 1)):
            with pytest.raises(ValueError, match="bytes"):
                await command
        await bus.keys.set("é" * (MAX_NAME // 2), b"", 1)

    run(check)


def test_a_value_or_a_time_out_of_bounds_is_refused(run: Run) -> None:
    async def check(bus: Bus) -> None:
        largest = bytes(MAX_DATA)
        await bus.keys.set("a", largest, 60)
        assert await bus.keys.get("a") == largest
        with pytest.raises(ValueError, match="more than the bus carries"):
            await bus.keys.set("a", largest + b"x", 60)
        for seconds in (0, -1, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="seconds"):
                await bus.keys.set("a", b"", seconds)

    run(check)


def test_a_cancelled_command_leaves_the_replies_of_others_in_order(run: Run) -> None:
    async def check(bus: Bus) -> None:
        for number in range(50):
            await bus.keys.set(str(number), b"%d" % number, 60)
        reads = [asyncio.create_task(bus.keys.get(str(number))) for number in range(50)]
        await asyncio.sleep(0)
        for read in reads[::3]:
            read.cancel()
        results = await asyncio.gather(*reads, return_exceptions=True)
        for number, result in enumerate(results):
            is_cancelled = isinstance(result, asyncio.CancelledError) and number % 3 == 0
            assert is_cancelled or result == b"%d" % number
        assert await bus.keys.get("7") == b"7"

    run(check)


def test_ended_values_leave_memory() -> None:
    async def check() -> None:
        now = 0.0
        keys = MemoryKeys(lambda: now)
        for number in range(50 * MIN_SWEEP):
            now = number / 100
            await keys.set(str(number), b"", 1.0)
        assert len(keys) <= 2 * MIN_SWEEP

    asyncio.run(check())
