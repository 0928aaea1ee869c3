"""What PostgreSQL alone can do to a store: restart, refuse, be of another version, or belong to another program."""

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import ROOT, eventually
from tests.server.state.sqlite.test_upgrade import next_migrations
from tests.servers import forked_command
from tests.servers.postgres import PASSWORD, Postgres
from toolgate.server.auth.login.accounts import Person
from toolgate.server.auth.login.sessions import LIFETIME, LoginSessions
from toolgate.server.base.errors import StateError
from toolgate.server.features.postgres.database import driver as driver
from toolgate.server.features.postgres.database import store as postgres_store
from toolgate.server.features.postgres.database.clock import DatabaseClock
from toolgate.server.features.postgres.database.store import PostgresStore
from toolgate.server.features.postgres.database_url import parse_database_url
from toolgate.server.state import migrate, tables
from toolgate.server.state.errors import StateVersionError
from toolgate.server.state.rows.callback_timer import CallbackTimer
from toolgate.server.state.rows.callbacks import CallbackStore
from toolgate.server.state.rows.todos import TodoStore

NEXT = tables.VERSION + 1
WRITER = """
import asyncio, sys
from pathlib import Path
from toolgate.server.features.postgres.database_url import parse_database_url
from toolgate.server.features.postgres.open_store import open_store
from toolgate.server.state.rows.todos import TodoStore

async def main():
    todos = TodoStore(open_store(Path("/"), parse_database_url(sys.argv[1])), "a", "")
    while True:
        print((await todos.create("x")).id, flush=True)

asyncio.run(main())
"""


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.create_database()


def opened(url: str, **how: Any) -> PostgresStore:
    return PostgresStore(Path("/nowhere"), parse_database_url(url), **how)


def run(url: str, body: Callable[[PostgresStore], Coroutine[Any, Any, Any]], **how: Any) -> Any:
    async def bounded() -> Any:
        store = opened(url, **how)
        try:
            return await asyncio.wait_for(body(store), 60)
        finally:
            await store.aclose()

    return asyncio.run(bounded())


async def ids(store: PostgresStore) -> list[int]:
    return [todo.id for todo in await TodoStore(store, "a", "").all()]


async def create(store: PostgresStore) -> None:
    await TodoStore(store, "a", "").create("x")


def test_what_was_acknowledged_survives_kill_9_in_mid_write(url: str) -> None:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": sys.stderr}
    words = (forked_command.COMMAND, "-c", WRITER, url)
    child = forked_command.start(words, **pipes, cwd=ROOT, env={"PATH": os.environ["PATH"]})
    with child.stdout as said:
        acknowledged = [int(said.readline()) for _ in range(100)]
        child.kill()
        acknowledged += [int(line) for line in said.read().split(b"\n")[:-1]]
    assert set(acknowledged) <= set(run(url, ids))


def test_of_two_that_start_at_once_on_a_new_database_one_makes_the_tables(url: str) -> None:
    async def body(store: PostgresStore) -> None:
        other = opened(url)
        await asyncio.gather(store.prepare(), other.prepare())
        await asyncio.gather(*(create(each) for each in (store, other)))
        assert await ids(store) == [1, 2]
        await other.aclose()

    run(url, body)


def test_a_restart_is_seen_by_what_was_under_way_alone(postgres: Postgres, url: str) -> None:
    async def body(store: PostgresStore) -> None:
        await asyncio.gather(*(create(store) for _ in range(4)))
        postgres.stop()
        waiting = asyncio.create_task(create(store))
        await asyncio.sleep(0.2)
        postgres.start()
        await waiting
        assert len(await ids(store)) == 5

    run(url, body)


def test_a_call_refused_on_a_connection_that_has_ended_says_why_and_costs_no_connection(
    postgres: Postgres, url: str
) -> None:
    """The store notices the end when it rolls back."""

    def refuse(connection: Any) -> None:
        (pid,) = connection.exec_driver_sql("SELECT pg_backend_pid()").one()
        postgres.run_sql(f"SELECT pg_terminate_backend({pid}, 5000)")
        raise StateError("there is no such todo")

    async def body(store: PostgresStore) -> None:
        for call in [store.read, store.transact] * driver.CONNECTIONS:
            with pytest.raises(StateError, match="no such todo"):
                await call(refuse)
        await create(store)
        assert await ids(store) == [1]

    run(url, body)


def test_a_connection_that_ends_in_a_transaction_fails_that_one(postgres: Postgres, url: str) -> None:
    def end(connection: Any) -> None:
        (pid,) = connection.exec_driver_sql("SELECT pg_backend_pid()").one()
        postgres.run_sql(f"SELECT pg_terminate_backend({pid})")
        connection.exec_driver_sql("SELECT 1")

    async def body(store: PostgresStore) -> None:
        await create(store)
        with pytest.raises(StateError, match="PostgreSQL"):
            await store.transact(end)
        await create(store)
        assert await ids(store) == [1, 2]

    run(url, body)


def test_one_that_is_away_is_told_and_comes_back(postgres: Postgres, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_store, "BUSY", 0.2)

    async def body(store: PostgresStore) -> None:
        await create(store)
        postgres.stop()
        try:
            with pytest.raises(StateError, match=r"\(PostgreSQL\) can't be reached; nothing was changed"):
                await create(store)
        finally:
            postgres.start()
        await create(store)
        assert len(await ids(store)) == 2

    run(url, body)


def test_a_process_is_alive_again_after_a_restart_of_postgresql(postgres: Postgres, url: str) -> None:
    async def body(store: PostgresStore) -> None:
        one, other = store.open_processes(), store.open_processes()
        name = await store.transact(lambda _: one.own_name())
        assert await other.find_dead([name]) == frozenset()
        postgres.stop()
        assert await other.find_dead([name]) == frozenset()  # nothing is known
        postgres.start()
        async with asyncio.timeout(20):
            while await asyncio.gather(*(store.transact(lambda _: one.own_name()) for _ in range(8))) != [name] * 8:
                await asyncio.sleep(0.05)
        assert await other.find_dead([name]) == frozenset()
        one.close()
        async with asyncio.timeout(20):
            while await other.find_dead([name]) != {name}:
                await asyncio.sleep(0.05)
        other.close()

    run(url, body)


def test_no_text_has_the_password(postgres: Postgres, url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    run(postgres.to_tcp(url), create)
    wrong = postgres.to_tcp(url, "wrong@horse")
    told: list[str] = []
    for each in (
        wrong,
        postgres.to_tcp(url).replace("/toolgate", "/missing"),
        "postgresql://x:tea%40five@127.0.0.1:1/x",
    ):
        with pytest.raises(StateError) as caught:
            run(each, create)
        told += [str(caught.value), repr(caught.value), repr(parse_database_url(each)), str(parse_database_url(each))]
    assert "refuses the user or the password" in told[0]
    assert "does not exist: create it first" in told[4]
    assert "can't be reached" in told[8]
    for secret in (PASSWORD, PASSWORD.replace("@", "%40"), "wrong@horse", "wrong%40horse"):
        assert secret not in caplog.text
        assert not any(secret in text for text in told)
    assert "127.0.0.1" in caplog.text


@pytest.mark.parametrize(
    "word",
    [
        "postgresql://u:s3cret/x@host/db",
        "postgresql://u:s3cret[x@host/db",
        "postgresql://u:s3cret\u2100@host/db",  # Python's own error repeats it
        "mysql://u:s3cret@host/db",
        "postgresql://u:s3cret@host",
        "s3cret",
        "",
    ],
)
def test_a_url_that_is_none_is_not_repeated(word: str) -> None:
    with pytest.raises(ValueError, match="must be postgresql://") as caught:
        parse_database_url(word)
    assert "s3cret" not in str(caught.value)


def test_rows_are_in_no_log(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def body(store: PostgresStore) -> None:
        row = {"name": "ada", "subject": "s", "password": "s3cret", "made_at": 0.0}
        for _ in range(2):
            await store.transact(lambda connection: connection.execute(tables.account.insert().values(row)))

    with pytest.raises(StateError, match="refused the work"):
        run(url, body)
    assert "account_pkey" in caplog.text and "s3cret" not in caplog.text


def test_tables_of_another_program_are_left_alone(postgres: Postgres, url: str) -> None:
    name = url.split("/")[3].split("?")[0]
    postgres.run_sql("CREATE TABLE session (x int)", database=name)
    with pytest.raises(StateError, match="has tables of another program"):
        run(url, create)
    assert postgres.run_sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", database=name) == "1"


def test_a_lock_that_is_held_too_long_is_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(driver.SETTINGS, "lock_timeout", "200ms")

    async def body(store: PostgresStore) -> None:
        await create(store)
        engine = driver.open_engine(lambda: driver.connect(store.url))
        async with engine.connect() as holder:
            await holder.execute(driver.lock_statement("todos\0a"))
            with pytest.raises(StateError, match="is busy: try again"):
                await create(store)
            await TodoStore(store, "b", "").create("another's")
        await engine.dispose()
        await create(store)
        assert await ids(store) == [1, 3]

    run(url, body)


def test_a_flood_of_one_person_leaves_connections_to_others(postgres: Postgres, url: str) -> None:
    async def body(store: PostgresStore) -> None:
        await asyncio.gather(*(create(store) for _ in range(40)), TodoStore(store, "b", "").create("x"))
        assert len(await ids(store)) == 40
        count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'toolgate'"
        assert int(postgres.run_sql(count)) <= driver.CONNECTIONS

    run(url, body)


def upgrade(url: str, since: int, folder: Path, then: str = "") -> None:
    """Upgrade to the next version, whose tables those from `since` on can use."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate, "MIGRATIONS", next_migrations(folder, then))
        for module in (migrate, tables):
            patch.setattr(module, "COMPATIBLE_SINCE", since)
            patch.setattr(module, "VERSION", NEXT)
        run(url, create)


def test_a_server_goes_on_while_the_next_version_adds_a_column(url: str, tmp_path: Path) -> None:
    async def body(store: PostgresStore) -> None:
        await create(store)
        await asyncio.to_thread(upgrade, url, tables.VERSION, tmp_path / "next")
        await create(store)
        assert await ids(store) == [1, 2, 3]

    run(url, body)
    assert len(run(url, ids)) == 3  # one that starts after the upgrade


def test_a_server_ends_where_the_next_version_changes_what_it_needs(url: str, tmp_path: Path) -> None:
    async def body(store: PostgresStore) -> None:
        await create(store)
        await asyncio.to_thread(upgrade, url, NEXT, tmp_path / "next")
        with pytest.raises(StateVersionError, match=f"version {NEXT}.*another --database"):
            await create(store)

    run(url, body)
    with pytest.raises(StateVersionError):
        run(url, ids)


def test_an_upgrade_that_fails_changes_nothing(
    postgres: Postgres, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(url, create)
    with pytest.raises(StateError, match=r"can't be upgraded.*it is unchanged"):
        upgrade(url, NEXT, tmp_path / "next", "raise LookupError('on purpose')")
    assert "on purpose" in caplog.text
    assert run(url, ids) == [1]


def test_a_command_that_reads_upgrades_nothing(url: str, tmp_path: Path) -> None:
    run(url, create)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "VERSION", NEXT)
        with pytest.raises(StateError, match=f"is of version {NEXT - 1}, and serving upgrades it to {NEXT}"):
            run(url, ids, upgrades=False)


def test_a_store_that_is_closed_leaves_no_connection(postgres: Postgres, url: str) -> None:
    run(url, create)
    name = url.split("/")[3].split("?")[0]
    count = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'"
    assert eventually(lambda: postgres.run_sql(count) == "0")


def test_what_hangs_when_the_store_is_closed_is_told(url: str) -> None:
    async def body(store: PostgresStore) -> None:
        await store.prepare()
        slow = asyncio.create_task(store.transact(lambda connection: connection.exec_driver_sql("SELECT pg_sleep(9)")))
        await asyncio.sleep(0.1)
        await store.aclose()
        with pytest.raises(StateError, match="shut down before this was stored"):
            await slow

    run(url, body)


@pytest.mark.parametrize("off", [-300.0, 300.0])
def test_a_server_with_a_wrong_clock_stores_the_times_of_the_database(url: str, off: float) -> None:
    async def body(store: PostgresStore) -> None:
        wrong = opened(url, clock=DatabaseClock(local=lambda: time.time() + off))
        assert abs(wrong.now() - time.time() - off) < 60  # not measured yet
        await wrong.prepare()
        assert abs(wrong.now() - time.time()) < 60
        timer = CallbackTimer(wrong, lambda _: None)
        await CallbackStore(wrong, timer, "ada", "").set("tea", 90, 1)
        await timer.stop()
        person = Person("https://issuer.example", "ada", "Ada")
        secret = await LoginSessions(wrong).start(person, "")
        assert await LoginSessions(store).find(secret) is not None
        await wrong.aclose()

        def read(connection: tables.Connection) -> list[float]:
            columns = tables.callback.c.next_at, tables.login.c.until, tables.person.c.seen_at
            return [connection.execute(tables.select(column)).scalar_one() for column in columns]

        due, until, seen_at = await store.read(read)
        now = time.time()
        assert [abs(due - now - 90) < 60, abs(until - now - LIFETIME) < 60, abs(seen_at - now) < 60] == [True] * 3

    run(url, body)
