"""Two processes on one state at the same moment: what only one of them may do happens once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.state.each_store import ON_EACH, open_store
from toolgate.server.auth.login.accounts import Accounts, SignInError
from toolgate.server.auth.tokens.signing_keys import SigningKeys
from toolgate.server.state import tables
from toolgate.server.state.keys import rows as key_rows
from toolgate.server.state.keys.file import KeyFile
from toolgate.server.state.keys.sealed_state import Sealer
from toolgate.server.state.live_processes import LiveProcesses
from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.rows import people as people_rows
from toolgate.server.state.rows.callback_timer import CallbackTimer, serves_everyone
from toolgate.server.state.rows.callbacks import CallbackStore
from toolgate.server.state.rows.due_callbacks import DueCallbacks
from toolgate.server.state.rows.tasks import TaskRows
from toolgate.server.state.store import Store

pytestmark = ON_EACH
NOW = 1_000_000.0
Stores = tuple[Store, Store]


@pytest.fixture(params=[20, pytest.param(200, marks=pytest.mark.soak)])
def race(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Race two stores on one database: `race(trial)` runs `await trial(number, stores)` many times."""

    def run(trial: Callable[[int, Stores], Awaitable[None]]) -> None:
        async def body() -> None:
            stores = open_store(tmp_path), open_store(tmp_path)
            for store in stores:  # both connect before the first trial
                await asyncio.gather(*(store.read(lambda _: None) for _ in range(3)))
            try:
                for number in range(request.param):
                    await asyncio.wait_for(trial(number, stores), 20)
            finally:
                for store in stores:
                    await store.aclose()

        asyncio.run(body())

    yield run


async def both(stores: Stores, work: Callable[[Store], Awaitable[Any]]) -> list[Any]:
    """Return the two results of the same work at the same moment."""
    return await asyncio.gather(*(work(store) for store in stores))


async def close(process: LiveProcesses, *, seen_by: LiveProcesses) -> None:
    """End a process, and wait until the store knows: PostgreSQL notices the end of a connection a moment later."""
    name = process.own_name()
    process.close()
    async with asyncio.timeout(10):
        while not await seen_by.find_dead([name]):
            await asyncio.sleep(0)


def test_a_callback_of_a_dead_process_fires_once(race: Callable[..., None]) -> None:
    async def trial(_number: int, stores: Stores) -> None:
        registries = [store.open_processes() for store in stores]
        owner = CallbackTimer(stores[0], lambda _: None, now=lambda: NOW)
        await CallbackStore(stores[0], owner, "ada", "").set("tea", 10, 1)
        await close(owner.processes, seen_by=registries[0])
        claims = (
            DueCallbacks(store, registry, serves_everyone, lambda: NOW + 60.0).claim()
            for store, registry in zip(stores, registries, strict=True)
        )
        assert sum(len(firings) for firings, _ in await asyncio.gather(*claims)) == 1
        for each in registries:
            each.close()

    race(trial)


def test_a_task_of_a_dead_process_is_adopted_once(race: Callable[..., None]) -> None:
    async def trial(number: int, stores: Stores) -> None:
        registries = [store.open_processes() for store in stores]
        dead = stores[0].open_processes()
        await TaskRows(stores[0], dead, lambda: NOW, "").add(f"task {number}", "ada", 60.0, b"{}")
        await close(dead, seen_by=registries[0])
        rows = [TaskRows(store, each, lambda: NOW, "") for store, each in zip(stores, registries, strict=True)]
        assert sum(map(len, await asyncio.gather(*(each.adopt(serves_everyone) for each in rows)))) == 1
        await rows[0].remove(f"task {number}")
        for each in registries:
            each.close()

    race(trial)


def test_two_processes_begin_with_one_signing_key(race: Callable[..., None], tmp_path: Path) -> None:
    async def trial(_number: int, stores: Stores) -> None:
        await stores[0].transact(key_rows.remove_all_keys, alone="keys")
        keys = [SigningKeys(store, Sealer(KeyFile(tmp_path / "keys" / "signing"), None)) for store in stores]
        first, second = await asyncio.gather(*(each.active() for each in keys))
        assert first.kid == second.kid and len(await keys[0].public()) == 1

    race(trial)


def test_there_is_one_first_account(race: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    async def hash_at_once(_accounts: Accounts, password: str) -> str:
        return password

    monkeypatch.setattr(Accounts, "_hash_password", hash_at_once)

    async def trial(number: int, stores: Stores) -> None:
        names = iter(("ada", "bob"))
        work = lambda store: Accounts(store).add(next(names), "correct horse battery", first=True)  # noqa: E731
        added = await asyncio.gather(*map(work, stores), return_exceptions=True)
        assert sum(isinstance(each, SignInError) for each in added) == 1
        (account,) = await Accounts(stores[0]).list_accounts()
        await Accounts(stores[0]).remove(account[0])

    race(trial)


def test_a_code_is_redeemed_once(race: Callable[..., None]) -> None:
    async def trial(number: int, stores: Stores) -> None:
        grant = await stores[0].transact(_add_grant, alone="oauth")
        row = {"grant_id": grant, "challenge": "x", "expires_at": NOW}
        await stores[0].transact(lambda rows: grant_rows.add_code(rows, f"code {number}", **row), alone="oauth")
        redeem = lambda rows: grant_rows.redeem_code(rows, f"code {number}", NOW)  # noqa: E731
        assert sorted(await both(stores, lambda store: store.transact(redeem, alone=None))) == [False, True]

    race(trial)


def test_a_refresh_token_has_one_successor(race: Callable[..., None]) -> None:
    def redeem(connection: Any, token: str) -> bool:
        """Redeem the token as the refresh grant does: after a look at it."""
        row = grant_rows.find_refresh_token(connection, token)
        if row.redeemed_at is not None:
            return False
        grant_rows.add_refresh_token(connection, f"{token} next {id(connection)}", row.grant_id)
        return grant_rows.redeem_refresh_token(connection, token, NOW, b"salt")

    async def trial(number: int, stores: Stores) -> None:
        token = f"token {number}"
        grant = await stores[0].transact(_add_grant, alone="oauth")
        await stores[0].transact(lambda rows: grant_rows.add_refresh_token(rows, token, grant), alone="oauth")
        work = lambda store: store.transact(lambda rows: redeem(rows, token), alone="oauth")  # noqa: E731
        assert sorted(await both(stores, work)) == [False, True]
        tokens = tables.refresh_token.select().filter_by(grant_id=grant)
        assert len(await stores[0].read(lambda rows: rows.execute(tokens).all())) == 2

    race(trial)


def test_an_id_is_used_once(race: Callable[..., None]) -> None:
    async def trial(number: int, stores: Stores) -> None:
        mark = lambda rows: grant_rows.mark_used(rows, f"id {number}", NOW)  # noqa: E731
        assert sorted(await both(stores, lambda store: store.transact(mark, alone=None))) == [False, True]

    race(trial)


def test_a_login_that_waits_is_taken_once(race: Callable[..., None]) -> None:
    async def trial(number: int, stores: Stores) -> None:
        row = {"hash": f"hash {number}", "provider": "x", "question": "", "scopes": "", "until": NOW + 1}
        await stores[0].transact(lambda rows: people_rows.add_pending_login(rows, NOW, **row), alone="accounts")
        take = lambda rows: people_rows.take_pending_login(rows, f"hash {number}", NOW)  # noqa: E731
        taken = await both(stores, lambda store: store.transact(take, alone=None))
        assert sum(row is not None for row in taken) == 1

    race(trial)


def _add_grant(connection: Any) -> str:
    words = {"client": "c", "subject": "s", "scope": "", "resource": "", "redirect_uri": ""}
    return grant_rows.add_grant(connection, NOW, 60.0, **words)
