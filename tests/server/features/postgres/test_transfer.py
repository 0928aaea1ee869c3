"""Backups of PostgreSQL and SQLite are one format: the way from one to the other, and back."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.cli.test_cli import run
from tests.server.state import fixture
from tests.server.state.backup.test_backup import lasting
from tests.servers.postgres import Postgres
from toolgate.server.features.postgres.database_url import parse_database_url
from toolgate.server.features.postgres.open_store import open_store
from toolgate.server.state import flags, tables
from toolgate.server.state.rows.todos import TodoStore
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.state.store import Store

Toolgate = Callable[..., str]


@pytest.fixture
def toolgate(tmp_path: Path) -> Toolgate:
    """Run a command, and return what it prints."""

    def call(*words: str, code: int = 0) -> str:
        done = run(tmp_path, *words)
        assert done.returncode == code, done
        return done.stdout + done.stderr

    return call


@pytest.fixture
def secret(tmp_path: Path) -> str:
    (tmp_path / "secret").write_bytes(bytes(range(32)))
    (tmp_path / "secret").chmod(0o600)
    return str(tmp_path / "secret")


def on(folder: Path, url: str, body: Callable[[Store], Any]) -> Any:
    async def work() -> Any:
        store = open_store(folder, parse_database_url(url))
        try:
            return await body(store)
        finally:
            await store.aclose()

    return asyncio.run(work())


def on_files(state: Path, body: Callable[[Store], Any]) -> Any:
    with contextlib.closing(SqliteStore(state)) as store:
        return asyncio.run(body(store))


def sequences(database: Path) -> list[tuple[str, int]]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return sorted(connection.execute("SELECT name, seq FROM sqlite_sequence"))


def test_all_rows_go_to_postgresql_and_come_back(tmp_path: Path, postgres: Postgres, toolgate: Toolgate) -> None:
    url, first, last = postgres.create_database(), tmp_path / "first", tmp_path / "last"
    fixture.made(first)
    names = sorted(path.name for path in (first / "flags").iterdir() if path.name != "sessions")
    toolgate("backup", "one", "--state", "first")
    toolgate("restore", "one", "--state", "middle", "--database", url)
    assert not (tmp_path / "middle" / "state.db").exists() and not (tmp_path / "middle" / "flags").exists()
    assert "ada" in toolgate("user", "list", "--state", "middle", "--database", url)
    toolgate("backup", "two", "--state", "middle", "--database", url)
    toolgate("restore", "two", "--state", "last")
    before, after = lasting(first / "state.db"), lasting(last / "state.db")
    for own in ("sealing_key", "deployment"):
        assert before.pop(own) and not after.pop(own)
    key = repr
    assert {name: sorted(rows, key=key) for name, rows in before.items()} == {
        name: sorted(rows, key=key) for name, rows in after.items()
    }
    assert sequences(first / "state.db") == sequences(last / "state.db")
    assert sorted(path.name for path in (last / "flags").iterdir()) == names
    with contextlib.closing(SqliteStore(last)) as store:
        assert store.has_flag(flags.PLAN_EXISTS, "local") and store.has_flag(flags.PLAN_ACTIVE, "local")
        assert store.has_flag(flags.MOUNT_CHOICES, "anybody") and store.has_flag(flags.MOUNT_BASELINE, "far")
    for name in ("signing", "questions", "request-state"):
        assert (first / "keys" / name).exists() == (last / "keys" / name).exists()


def test_no_number_is_given_twice(tmp_path: Path, postgres: Postgres, toolgate: Toolgate) -> None:
    url, other = postgres.create_database(), postgres.create_database()

    async def create(store: Store) -> int:
        return (await TodoStore(store, "a", "").create("x")).id

    async def forget(store: Store) -> None:
        await store.transact(lambda rows: rows.execute(tables.task.delete()))

    assert [on(tmp_path, url, create) for _ in range(3)] == [1, 2, 3]
    on(tmp_path, url, forget)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "node.name").write_text("x")
    toolgate("backup", "b", "--state", "one", "--database", url)
    toolgate("restore", "b", "--state", "two", "--database", other)
    assert on(tmp_path, other, create) == 4
    toolgate("restore", "b", "--state", "three")
    assert on_files(tmp_path / "three", create) == 4


def test_a_database_with_rows_is_replaced_only_when_told_and_moved_aside(
    tmp_path: Path, postgres: Postgres, toolgate: Toolgate
) -> None:
    url = postgres.create_database()
    fixture.made(tmp_path / "first")
    toolgate("backup", "b", "--state", "first")

    async def create(store: Store) -> None:
        await TodoStore(store, "a", "").create("mine")

    async def read(store: Store) -> list[str]:
        return [todo.name for todo in await TodoStore(store, "a", "").all()]

    on(tmp_path, url, create)
    assert "--replace" in toolgate("restore", "b", "--state", "new", "--database", url, code=1)
    assert on(tmp_path, url, read) == ["mine"] and not (tmp_path / "new").exists()
    toolgate("restore", "b", "--state", "new", "--database", url, "--replace")
    assert on(tmp_path, url, read) == []
    (aside,) = (tmp_path / "new").glob("replaced-*")
    assert on_files(aside, read) == ["mine"]


def test_a_restore_beside_a_server_is_refused(tmp_path: Path, postgres: Postgres, toolgate: Toolgate) -> None:
    url = postgres.create_database()
    fixture.made(tmp_path / "first")
    toolgate("backup", "b", "--state", "first")

    async def body(store: Store) -> str:
        await store.prepare()
        words = ("restore", "b", "--state", "new", "--database", url, "--replace")
        return await asyncio.to_thread(toolgate, *words, code=1)

    assert "a server uses the database" in on(tmp_path, url, body)


def test_a_restore_that_fails_at_its_last_step_changes_nothing(
    tmp_path: Path, postgres: Postgres, toolgate: Toolgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toolgate.server.features.postgres import transfer
    from toolgate.server.state.backup.manifest import BackupError

    url, staging = postgres.create_database(), tmp_path / "staging"
    (staging / "come").mkdir(parents=True)
    fixture.made(staging / "come")

    def fail(*_: Any) -> None:
        raise BackupError("on purpose")

    monkeypatch.setattr(transfer, "_replace_files", fail)
    with pytest.raises(BackupError, match="on purpose"):
        transfer.PostgresTransfer(tmp_path / "state", parse_database_url(url), None).replace(staging, replace=False)
    assert postgres.run_sql("SELECT count(*) FROM task", database=url.split("/")[3].split("?")[0]) == "0"


def test_keys_in_postgresql_go_through_files(
    tmp_path: Path, postgres: Postgres, toolgate: Toolgate, secret: str
) -> None:
    url = postgres.create_database()
    fixture.made(tmp_path / "first")
    key = (tmp_path / "first" / "keys" / "signing").read_bytes()
    toolgate("backup", "one", "--state", "first")
    toolgate("restore", "one", "--state", "two", "--database", url, "--secret", secret)
    assert not (tmp_path / "two" / "keys" / "signing").exists()
    told = toolgate("doctor", "--browser", "none", "--state", "two", "--database", url, "--secret", secret, "-t")
    assert "PostgreSQL 1" in told and "made 0 days ago" in told
    assert "give the --secret" in toolgate("backup", "no", "--state", "two", "--database", url, code=1)
    assert not (tmp_path / "no").exists()
    toolgate("backup", "two.gz", "--state", "two", "--database", url, "--secret", secret)
    toolgate("restore", "two.gz", "--state", "three")
    assert (tmp_path / "three" / "keys" / "signing").read_bytes() == key
