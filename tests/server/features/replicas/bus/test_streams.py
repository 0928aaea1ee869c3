"""Streams of one key, on each kind of bus."""

import asyncio
from collections.abc import Callable

import pytest

from tests.server.features.replicas.bus.conftest import eventually
from toolgate.server.base.bus.bus import MAX_DATA, Bus, StreamEntry
from toolgate.server.base.bus.settings import BusSettings, StreamLimits

Run = Callable[..., None]


def test_entries_are_read_after_a_number_each_stream_alone(run: Run) -> None:
    async def check(bus: Bus) -> None:
        for number in range(1, 6):
            assert bus.streams.append("session", "a", number, b"a%d" % number)
            assert bus.streams.append("session", "b", number * 10, b"b%d" % number)
        assert bus.streams.append("other", "a", 1, b"another session's")
        await bus.streams.flush()
        assert await bus.streams.read("session", "a", 3) == [StreamEntry(4, b"a4"), StreamEntry(5, b"a5")]
        assert [entry.number for entry in await bus.streams.read("session", "b")] == [10, 20, 30, 40, 50]
        assert await bus.streams.read("session", "a", 5) == []
        assert await bus.streams.read("session", "c") == await bus.streams.read("absent", "a") == []

    run(check)


def test_an_entry_may_hold_any_bytes(run: Run) -> None:
    async def check(bus: Bus) -> None:
        data = bytes(range(256)) * 100
        bus.streams.append("session", "a.é", 2**40, data)
        await bus.streams.flush()
        assert await bus.streams.read("session", "a.é", 2**40 - 1) == [StreamEntry(2**40, data)]

    run(check)


def test_the_oldest_entries_go_when_there_are_too_many(run: Run) -> None:
    async def check(bus: Bus) -> None:
        for number in range(1, 26):
            bus.streams.append("session", "a", number, b"x")
        await bus.streams.flush()
        assert [entry.number for entry in await bus.streams.read("session", "a")] == list(range(16, 26))

    run(check, BusSettings(streams=StreamLimits(entries=10)))


def test_the_oldest_entries_go_when_they_are_too_large(run: Run) -> None:
    async def check(bus: Bus) -> None:
        for number in range(1, 11):
            bus.streams.append("session", "a", number, bytes(300))
            await bus.streams.flush()
        assert [entry.number for entry in await bus.streams.read("session", "a")] == [8, 9, 10]
        bus.streams.append("session", "b", 1, bytes(400))
        await bus.streams.flush()
        assert [entry.number for entry in await bus.streams.read("session", "a")] == [9, 10]
        bus.streams.append("session", "b", 2, bytes(5_000))  # alone over the limit: the newest stays
        await bus.streams.flush()
        assert await bus.streams.read("session", "a") == []
        assert await bus.streams.read("session", "b") == [StreamEntry(2, bytes(5_000))]

    run(check, BusSettings(streams=StreamLimits(size=1_000)))


def test_the_newest_of_many_large_entries_stay_when_they_come_at_once(run: Run) -> None:
    async def check(bus: Bus) -> None:
        for number in range(1, 11):
            assert bus.streams.append("session", "a", number, bytes(300))
        await bus.streams.flush()
        assert [entry.number for entry in await bus.streams.read("session", "a")] == [8, 9, 10]
        assert bus.streams.append("session", "a", 11, b"a progress message")
        assert bus.streams.append("session", "a", 12, bytes(5_000))
        await bus.streams.flush()
        assert await bus.streams.read("session", "a") == [StreamEntry(12, bytes(5_000))]

    run(check, BusSettings(streams=StreamLimits(size=1_000)))


def test_streams_end_some_time_after_the_last_append(run: Run) -> None:
    async def check(bus: Bus) -> None:
        bus.streams.append("session", "a", 1, b"x")
        await bus.streams.flush()
        assert await bus.streams.read("session", "a")

        async def has_ended() -> bool:
            return await bus.streams.read("session", "a") == []

        await eventually(has_ended)
        bus.streams.append("session", "a", 2, b"y")
        await bus.streams.flush()
        assert await bus.streams.read("session", "a") == [StreamEntry(2, b"y")]

    run(check, BusSettings(streams=StreamLimits(seconds=0.2)))


def test_deleted_streams_stay_deleted_with_what_was_not_written(run: Run) -> None:
    async def check(bus: Bus) -> None:
        for number in range(1, 4):
            bus.streams.append("session", "a", number, b"x")
            bus.streams.append("other", "a", number, b"x")
            await asyncio.sleep(0)
        bus.streams.append("session", "a", 4, b"x")
        await bus.streams.delete("session")
        await bus.streams.flush()
        assert await bus.streams.read("session", "a") == []
        assert len(await bus.streams.read("other", "a")) == 3

    run(check)


def test_an_entry_that_is_too_large_is_dropped_and_an_empty_one_refused(run: Run) -> None:
    async def check(bus: Bus) -> None:
        assert not bus.streams.append("session", "a", 1, bytes(MAX_DATA + 1))
        assert bus.streams.append("session", "a", 2, bytes(MAX_DATA))
        for number, data in ((3, b""), (0, b"x")):
            with pytest.raises(ValueError, match="number from 1 and data"):
                bus.streams.append("session", "a", number, data)
        await bus.streams.flush()
        assert await bus.streams.read("session", "a") == [StreamEntry(2, bytes(MAX_DATA))]

    run(check, BusSettings(command=10.0))


def test_the_gap_of_a_trimmed_stream_shows_in_its_numbers(run: Run) -> None:
    async def check(bus: Bus) -> None:
        for number in range(1, 8):
            bus.streams.append("session", "a", number, b"x")
        await bus.streams.flush()
        first = (await bus.streams.read("session", "a", 2))[0]
        assert first.number == 5

    run(check, BusSettings(streams=StreamLimits(entries=3)))
