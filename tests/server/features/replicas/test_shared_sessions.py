"""The limits of sessions over all replicas, and messages that wait for a reader, on a bus in memory."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable

import msgspec
import pytest

from tests.clients.raw_client import PATIENCE
from toolgate.server.base.bus.bus import Bus
from toolgate.server.base.principals.principal import Principal
from toolgate.server.features.replicas.open_bus import open_bus
from toolgate.server.features.replicas.sessions.record import SessionRecord, decode_record, encode_record
from toolgate.server.features.replicas.sessions.redis_records import MAX_WAITING, RedisSessionRecords, WaitingMessage
from toolgate.server.features.replicas.sessions.redis_store import RedisSessionStore
from toolgate.server.features.replicas.sessions.session_limits import SessionLimits
from toolgate.server.protocol.dispatcher import Dispatcher
from toolgate.server.protocol.revisions import WITH_SESSION
from toolgate.server.protocol.session import Session
from toolgate.transports.http.sessions.session import HttpSession
from toolgate.transports.http.sessions.sessions import Sessions

ADA, OTHER_APP = Principal("i", "ada", "app"), Principal("i", "ada", "other app")


def run(check: Callable[[Bus, RedisSessionRecords], Awaitable[None]]) -> None:
    async def body() -> None:
        bus = await open_bus()
        await check(bus, RedisSessionRecords(bus.keys))
        await bus.close()

    asyncio.run(body())


async def add(store: RedisSessionRecords, key: str, seen: float) -> None:
    await store.add(key, encode_record(SessionRecord("i", "ada", "app", began=seen, seen=seen)))


def test_the_longest_unused_session_of_the_owner_makes_room() -> None:
    async def check(bus: Bus, store: RedisSessionRecords) -> None:
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
    async def check(bus: Bus, store: RedisSessionRecords) -> None:
        limits = SessionLimits(bus.keys, store, per_owner=2, per_person=2)
        for key in ("one", "two"):
            await limits.add(key, ADA)
            await add(store, key, 1.0)
        await store.remove("one")
        assert await limits.add("three", ADA) == []

    run(check)


def test_sessions_that_are_opened_at_once_are_all_counted() -> None:
    async def check(bus: Bus, store: RedisSessionRecords) -> None:
        limits = SessionLimits(bus.keys, store, per_owner=4, per_person=4)
        for key in "abcd":
            await add(store, key, 1.0)
        await asyncio.gather(*(limits.add(key, ADA) for key in "abcd"))
        assert await limits.add("e", ADA) != []

    run(check)


def test_waiting_messages_are_taken_once_and_the_newest_stay() -> None:
    async def check(_bus: Bus, store: RedisSessionRecords) -> None:
        for data in (b"x" * MAX_WAITING, b"one", b"one", b"two"):
            await store.leave_message("key", WaitingMessage(data))
        assert [message.data for message in await store.take_messages("key")] == [b"one", b"two"]
        assert await store.take_messages("key") == []

    run(check)


def test_a_request_that_comes_as_a_session_is_built_does_not_block_the_server() -> None:
    async def check(bus: Bus, store: RedisSessionRecords) -> None:
        begun, shared = asyncio.Event(), asyncio.Event()

        async def share(_session: Session, _uris: Iterable[str]) -> None:
            begun.set()
            await shared.wait()

        dispatcher = Dispatcher({}, {}, lambda result, _: result)
        shared_store = RedisSessionStore(bus, dispatcher, share=share, may_repeat=lambda _: False)
        sessions = Sessions(lambda _: None, shared_store)
        opened = await sessions.admit(ADA)
        assert opened is not None
        opened.session.revision = WITH_SESSION["2025-11-25"]
        await opened.backend.write()
        sessions.forget(opened)

        async def come() -> HttpSession | None:
            await shared.wait()
            return await sessions.wake(opened.id, ADA)

        first = asyncio.create_task(sessions.wake(opened.id, ADA))
        await begun.wait()
        record = decode_record(await store.read(opened.record_key) or b"")
        assert record is not None
        changed = msgspec.structs.replace(record, version=record.version + 1)  # by another replica
        await store.add(opened.record_key, encode_record(changed))
        second = asyncio.create_task(come())
        await asyncio.sleep(0)
        shared.set()  # both go on in this turn of the loop
        built = await asyncio.gather(first, second)
        assert built[0] is not None and built[0] is built[1]
        await sessions.suspend_all()

    # a loop that does not end would hold up a timeout, too
    thread = threading.Thread(target=run, args=(check,), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def create_sessions(bus: Bus) -> Sessions:
    async def share(_session: Session, _uris: Iterable[str]) -> None: ...

    dispatcher = Dispatcher({}, {}, lambda result, _: result)
    return Sessions(lambda _: None, RedisSessionStore(bus, dispatcher, share=share, may_repeat=lambda _: False))


def test_a_late_request_of_an_evicted_session_leaves_the_one_that_was_built_since() -> None:
    async def check(bus: Bus, store: RedisSessionRecords) -> None:
        sessions = create_sessions(bus)
        evicted = await sessions.admit(ADA)
        assert evicted is not None
        sessions.forget(evicted)
        built = await sessions.wake(evicted.id, ADA)
        assert built is not None and built is not evicted
        await store.remove(built.record_key)  # it ends at another replica, whose notice comes late
        evicted.session.ready = True
        await evicted.backend.write()
        assert await sessions.wake(built.id, ADA) is None
        assert built.is_ended
        await sessions.suspend_all()

    run(check)


def test_a_session_whose_record_can_not_be_read_is_not_half_there() -> None:
    async def check(bus: Bus, store: RedisSessionRecords) -> None:
        sessions = create_sessions(bus)
        opened = await sessions.admit(ADA)
        assert opened is not None
        sessions.forget(opened)
        record = decode_record(await store.read(opened.record_key) or b"")
        assert record is not None
        unread = msgspec.structs.replace(record, version=2, capabilities=msgspec.Raw(b'{"size":1e999}'))
        await store.add(opened.record_key, encode_record(unread))
        for _ in range(2):
            with pytest.raises(ValueError, match="out of range"):
                await sessions.wake(opened.id, ADA)
        await store.add(opened.record_key, encode_record(msgspec.structs.replace(record, version=3)))
        assert await sessions.wake(opened.id, ADA) is not None
        await sessions.suspend_all()

    run(check)
