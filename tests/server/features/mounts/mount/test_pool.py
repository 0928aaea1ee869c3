"""Conversations of a mount: who shares one, when it ends, and how long a failure holds the next try up."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from toolgate.server.features.mounts.mount import backoff, pool
from toolgate.server.features.mounts.mount.backoff import RestartDelay
from toolgate.server.features.mounts.mount.pool import SessionKey, SessionPool
from toolgate.server.features.mounts.mount.profile import NOTHING, create_profile
from toolgate.server.features.mounts.upstream.errors import MountError, UpstreamFault
from toolgate.server.features.mounts.upstream.peer import Flight, UpstreamPeer
from toolgate.server.features.mounts.upstream.session import UpstreamInfo, UpstreamSession

INFO = UpstreamInfo("2025-11-25", False, {}, "")


class Sessions:
    """Opens conversations that go nowhere, and counts them."""

    def __init__(self) -> None:
        self.opened: list[UpstreamSession] = []
        self.ended: list[UpstreamSession] = []

    async def open(self, key: SessionKey, secrets: object) -> UpstreamSession:
        session = UpstreamSession(UpstreamPeer(lambda _method, _params: None), INFO, key.profile.capabilities)
        session.peer.wire = DeadWire(self, session)
        self.opened.append(session)
        return session


class DeadWire:
    def __init__(self, sessions: Sessions, session: UpstreamSession) -> None:
        self._sessions = sessions
        self._session = session

    async def send(self, message: bytes, flight: Flight | None = None, headers: Any = None) -> None: ...

    def abandon(self, flight: Flight) -> bool:
        return True

    async def close(self) -> None:
        self._sessions.ended.append(self._session)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 40))


def test_only_equal_keys_share_a_conversation() -> None:
    async def body() -> None:
        held = SessionPool(Sessions().open)
        able = create_profile({"roots": {"listChanged": True}})
        keys = [
            SessionKey("ada", NOTHING),
            SessionKey("bob", NOTHING),
            SessionKey("ada", able),
            SessionKey("ada", NOTHING, "session"),
            SessionKey("ada", NOTHING, "", frozenset(("tools:read",))),
        ]
        found = [await held.get(key) for key in keys]
        assert len(set(map(id, found))) == len(keys)
        assert [await held.get(key) for key in keys] == found
        assert found[2].capabilities == {"roots": {}}
        await held.close()

    run(body())


def test_many_that_ask_at_once_open_one() -> None:
    async def body() -> None:
        sessions = Sessions()
        held = SessionPool(sessions.open)
        key = SessionKey("ada", NOTHING)
        found = await asyncio.gather(*(held.get(key) for _ in range(64)))
        assert len(sessions.opened) == 1 and set(map(id, found)) == {id(sessions.opened[0])}
        await held.close()
        assert sessions.ended == sessions.opened

    run(body())


def test_nothing_opens_a_conversation_in_a_closed_pool() -> None:
    async def body() -> None:
        sessions = Sessions()
        held = SessionPool(sessions.open)
        await held.close()
        with pytest.raises(MountError, match="CONNECT_FAILED: it was removed or changed here"):
            await held.get(SessionKey("ada", NOTHING))
        assert not sessions.opened

    run(body())


def test_an_idle_conversation_ends_and_one_with_a_call_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE", 0.0)
    monkeypatch.setattr(pool, "SWEEP", 0.01)

    async def body() -> None:
        sessions = Sessions()
        held = SessionPool(sessions.open)
        busy = await held.get(SessionKey("ada", NOTHING))
        await busy.start("tools/call", {}, Flight())
        idle = await held.get(SessionKey("bob", NOTHING))
        await idle.start("subscriptions/listen", {}, Flight(is_call=False))
        while idle not in sessions.ended:
            await asyncio.sleep(0.01)
        assert busy not in sessions.ended
        assert [session for _, session in held.list_running()] == [busy]
        await held.close()

    run(body())


def test_a_principal_has_a_most_of_conversations_and_the_oldest_idle_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_OF_PRINCIPAL", 2)

    async def body() -> None:
        sessions = Sessions()
        held = SessionPool(sessions.open)
        for name in ("one", "two", "three"):
            await held.get(SessionKey("ada", NOTHING, name))
        await held.get(SessionKey("bob", NOTHING))
        await asyncio.sleep(0)
        assert sessions.ended == sessions.opened[:1]
        for session in sessions.opened[1:3]:
            await session.start("tools/call", {}, Flight())
        with pytest.raises(MountError, match="in use"):
            await held.get(SessionKey("ada", NOTHING, "four"))
        await held.close()

    run(body())


def test_the_wait_doubles_and_is_short_again_after_it_went_well(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    monkeypatch.setattr(backoff.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(backoff.random, "uniform", lambda _low, high: high)
    delay = RestartDelay()
    waits = []
    for _ in range(8):
        delay.note_failure()
        waits.append(delay.seconds_left)
        now[0] += delay.seconds_left
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    now[0] += 2 * backoff.WELL_AFTER + 1
    delay.note_failure()
    assert delay.seconds_left == 1


def test_a_profile_names_what_a_server_is_told_and_nothing_else() -> None:
    declared = {
        "elicitation": {"form": {}},
        "sampling": "yes",
        "experimental": {"x": {}},
        "extensions": {"io.modelcontextprotocol/ui": {"a": 1}, "io.modelcontextprotocol/tasks": {}},
    }
    profile = create_profile(declared)
    assert profile.capabilities == {
        "elicitation": {"form": {}},
        "extensions": {"io.modelcontextprotocol/ui": {"a": 1}},
    }
    assert create_profile({"extensions": {"x": {"y": "z" * 10_000}}, "roots": {}}) == NOTHING


def test_other_secrets_open_another_conversation_and_calls_of_the_old_one_go_on() -> None:
    async def body() -> None:
        sessions = Sessions()
        held, key = SessionPool(sessions.open), SessionKey("ada", NOTHING)
        first = await held.get(key, "old")
        assert await held.get(key, "old") is first and held.has(key, "old") and not held.has(key, "new")
        flight = Flight()
        await first.peer.send("tools/call", {}, flight)
        second = await held.get(key, "new")
        assert second is not first and await held.get(key, "new") is second
        await asyncio.sleep(0)
        assert sessions.ended == []  # it has a call
        first.peer.fail(UpstreamFault("CONNECTION_LOST", "over"), flight)
        third = await held.get(key, "newer")
        await held.close()
        assert sessions.ended == [first, second, third]

    run(body())


def test_a_principal_that_goes_takes_outdated_conversations_along() -> None:
    async def body() -> None:
        sessions = Sessions()
        held, key = SessionPool(sessions.open), SessionKey("ada", NOTHING)
        first = await held.get(key, "old")
        await first.peer.send("tools/call", {}, Flight())
        await held.get(key, "new")
        held.end(lambda each: each.principal == "ada")
        await held.close()
        assert len(sessions.ended) == 2

    run(body())
