"""The limits of sessions over all replicas, and messages that wait for a reader, on a bus in memory."""

import asyncio
from collections.abc import Awaitable, Callable

from toolgate.server.base.bus.bus import Bus
from toolgate.server.base.principal import Principal
from toolgate.server.features.replicas.open_bus import open_bus
from toolgate.server.features.replicas.sessions.session_limits import SessionLimits
from toolgate.server.features.replicas.sessions.session_store import MAX_WAITING, SessionStore, WaitingMessage
from toolgate.server.protocol.session_record import SessionRecord, encode_record

ADA, OTHER_APP = Principal("i", "ada", "app"), Principal("i", "ada", "other app")


def run(check: Callable[[Bus, SessionStore], Awaitable[None]]) -> None:
    async def body() -> None:
        bus = await open_bus()
        await check(bus, SessionStore(bus.keys))
        await bus.close()

    asyncio.run(body())


async def add(store: SessionStore, key: str, seen: float) -> None:
    await store.add(key, encode_record(SessionRecord("i", "ada", "app", began=seen, seen=seen)))


def test_the_longest_unused_session_of_the_owner_makes_room() -> None:
    async def check(bus: Bus, store: SessionStore) -> None:
        limits = SessionLimits(bus.keys, store, per_owner=2, per_person=3)
        for key, seen in (("one", 2.0), ("two", 1.0)):
            assert await limits.add(key, ADA) == []
            await add(store, key, seen)
        assert await limits.add("three", OTHER_APP) == []
        await add(store, "three", 0.5)
        assert await limits.add("four", ADA) == ["two"]
        await store.remove("two")
        await add(store, "four", 3.0)
        assert await limits.add("five", OTHER_APP) == ["three"]  # the person has three

    run(check)


def test_sessions_that_have_ended_make_room_first() -> None:
    async def check(bus: Bus, store: SessionStore) -> None:
        limits = SessionLimits(bus.keys, store, per_owner=2, per_person=2)
        for key in ("one", "two"):
            await limits.add(key, ADA)
            await add(store, key, 1.0)
        await store.remove("one")
        assert await limits.add("three", ADA) == []

    run(check)


def test_sessions_that_are_opened_at_once_are_all_counted() -> None:
    async def check(bus: Bus, store: SessionStore) -> None:
        limits = SessionLimits(bus.keys, store, per_owner=4, per_person=4)
        for key in "abcd":
            await add(store, key, 1.0)
        await asyncio.gather(*(limits.add(key, ADA) for key in "abcd"))
        assert await limits.add("e", ADA) != []

    run(check)


def test_waiting_messages_are_taken_once_and_the_newest_stay() -> None:
    async def check(_bus: Bus, store: SessionStore) -> None:
        for data in (b"x" * MAX_WAITING, b"one", b"one", b"two"):
            await store.leave_message("key", WaitingMessage(data))
        assert [message.data for message in await store.take_messages("key")] == [b"one", b"two"]
        assert await store.take_messages("key") == []

    run(check)
