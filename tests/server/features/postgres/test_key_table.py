"""Sealing keys that servers share in their database: made once, rotated, and opened with one secret."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.server.state.each_store import ON_EACH, open_store
from toolgate.server.auth.tokens.signing_keys import SigningKeys
from toolgate.server.base.errors import StateError
from toolgate.server.cli.commands import oauth_client
from toolgate.server.features.postgres import key_table as key_table
from toolgate.server.features.postgres.key_table import ANNOUNCE, NAMES, KeyTable
from toolgate.server.features.postgres.open_store import open_keys
from toolgate.server.state import tables
from toolgate.server.state.keys.sealed_state import LIFETIME, Sealer, SealError
from toolgate.server.state.store import Store

pytestmark = ON_EACH
SECRET = bytes(range(32))


class Clock:
    """A clock of all servers, in seconds since the epoch."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def run(folder: Path, body: Callable[[Store, Store, Clock], Coroutine[Any, Any, None]]) -> None:
    """Run `body` with the stores of two servers."""

    async def bounded() -> None:
        stores = open_store(folder), open_store(folder)
        try:
            await asyncio.wait_for(body(*stores, Clock()), 20)
        finally:
            for store in stores:
                await store.aclose()

    asyncio.run(bounded())


async def loaded(store: Store, clock: Clock, secret: bytes = SECRET) -> KeyTable:
    keys = KeyTable(store, secret, clock)
    await keys.load()
    return keys


def sealer(keys: KeyTable, clock: Clock) -> Sealer:
    return Sealer(keys.find("request-state"), LIFETIME, clock)


def test_two_servers_that_start_at_once_make_one_key_of_each_name(tmp_path: Path) -> None:
    async def body(one: Store, other: Store, clock: Clock) -> None:
        both = await asyncio.gather(loaded(one, clock), loaded(other, clock))
        for name in NAMES:
            first, second = (keys.find(name).read() for keys in both)
            assert first == second and len(first[0]) == 32 and first[1] == []
        assert len({keys.find(name).read()[0] for keys in both for name in NAMES}) == len(NAMES)

    run(tmp_path, body)


def test_a_new_key_seals_when_all_servers_have_it_and_the_old_one_opens_for_its_grace(tmp_path: Path) -> None:
    async def body(one: Store, other: Store, clock: Clock) -> None:
        here, there = await loaded(one, clock), await loaded(other, clock)
        old = sealer(here, clock).seal("old", "me", "it")
        before = here.find("request-state").read()[0]
        await here.rotate("request-state", LIFETIME)
        assert here.find("request-state").read()[0] == before  # the other server has not read it yet
        await there.load()
        clock.now += ANNOUNCE
        new = sealer(here, clock).seal("new", "me", "it")
        assert here.find("request-state").read()[0] != before
        for keys in (here, there):
            assert [sealer(keys, clock).unseal(each, "me", "it") for each in (old, new)] == ["old", "new"]
        clock.now += LIFETIME
        assert len(here.list_keys("request-state")) == 1
        await here.load()
        count = tables.sealing_key.select().filter_by(name="request-state")
        assert len(await one.read(lambda connection: connection.execute(count).all())) == 1

    run(tmp_path, body)


def test_with_the_old_keys_dropped_nothing_they_sealed_is_opened(tmp_path: Path) -> None:
    async def body(one: Store, other: Store, clock: Clock) -> None:
        here, there = await loaded(one, clock), await loaded(other, clock)
        state = sealer(here, clock).seal("it", "me", "it")
        await oauth_client.rotate_sealing_keys(here, drop_old=False)
        assert sealer(here, clock).unseal(state, "me", "it") == "it"
        await oauth_client.rotate_sealing_keys(here, drop_old=True)
        await there.load()
        for keys in (here, there):
            with pytest.raises(SealError):
                sealer(keys, clock).unseal(state, "me", "it")
        fresh = sealer(there, clock).seal("again", "me", "it")
        assert sealer(here, clock).unseal(fresh, "me", "it") == "again"

    run(tmp_path, body)


def test_signing_keys_are_opened_right_after_another_process_has_rotated_all(tmp_path: Path) -> None:
    async def body(one: Store, other: Store, clock: Clock) -> None:
        here, there = await loaded(one, clock), await loaded(other, clock)
        running = SigningKeys(other, Sealer(there.find("signing"), None), clock)
        first = (await running.active()).kid
        await here.rotate("signing", 60.0, at_once=True)
        kid = await SigningKeys(one, Sealer(here.find("signing"), None), clock).rotate(drop_old=True)
        await here.remove_previous("signing")
        assert [key.kid for key in await running.public()] == [kid] != [first]
        assert len(here.list_keys("signing")) == 1

    run(tmp_path, body)


def test_another_secret_opens_no_key(tmp_path: Path) -> None:
    async def body(one: Store, other: Store, clock: Clock) -> None:
        await loaded(one, clock)
        with pytest.raises(StateError, match="sealed with another secret"):
            await loaded(other, clock, b"x" * 32)
        rows = await one.read(lambda connection: connection.execute(tables.sealing_key.select()).all())
        assert sorted(row.name for row in rows) == sorted(NAMES)

    run(tmp_path, body)


def test_keys_that_were_not_read_are_told(tmp_path: Path) -> None:
    async def body(one: Store, _other: Store, clock: Clock) -> None:
        with pytest.raises(StateError, match="was not read"):
            sealer(KeyTable(one, SECRET, clock), clock).seal("it", "me", "it")

    run(tmp_path, body)


def test_a_server_follows_the_keys_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_table, "LOOK", 0.01)

    async def body(one: Store, other: Store, clock: Clock) -> None:
        here, there = await loaded(one, clock), await loaded(other, clock)
        following = asyncio.create_task(there.follow())
        await here.rotate("questions", 0)
        while there.find("questions").read() != here.find("questions").read():
            await asyncio.sleep(0.01)
        following.cancel()
        await asyncio.wait([following])

    run(tmp_path, body)


def test_keys_go_to_files_and_back(tmp_path: Path) -> None:
    async def body(one: Store, other: Store, clock: Clock) -> None:
        here = await loaded(one, clock)
        await here.rotate("request-state", LIFETIME)
        files = await one.read(here.to_files)
        assert sorted(name.partition(".before-")[0] for name in files) == sorted([*NAMES, "request-state"])
        other_secret = KeyTable(other, b"x" * 32, clock)
        await other.transact(lambda connection: other_secret.from_files(connection, files))
        await other_secret.load()
        assert await other.read(other_secret.to_files) == files

    run(tmp_path, body)


def test_a_folder_of_keys_is_refused_where_the_database_has_some(tmp_path: Path) -> None:
    async def body(one: Store, other: Store, clock: Clock) -> None:
        await open_keys(other, None).load()
        await loaded(one, clock)
        with pytest.raises(StateError, match="give the --secret"):
            await open_keys(other, None).load()

    run(tmp_path, body)
