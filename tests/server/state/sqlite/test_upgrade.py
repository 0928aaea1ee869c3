"""Databases of earlier versions opened by today's code, and upgrades that fail, are killed, or run at the same time."""

import asyncio
import contextlib
import multiprocessing
import multiprocessing.process
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from tests.clients.raw_client import eventually
from tests.server.cli.test_cli import run
from tests.server.state import fixture
from toolgate.server.base.errors import StateError
from toolgate.server.state import migrate, tables
from toolgate.server.state.errors import StateVersionError
from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.rows import people as people_rows
from toolgate.server.state.rows.callback_timer import CallbackTimer
from toolgate.server.state.rows.callbacks import CallbackStore
from toolgate.server.state.rows.plans import PlanStore
from toolgate.server.state.rows.todos import TodoStore
from toolgate.server.state.sqlite import store as store_module
from toolgate.server.state.sqlite import upgrade
from toolgate.server.state.sqlite.database import connect, disconnect
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.state.store import Store
from toolgate.server.state.tables import OLDEST, VERSION

# databases of the oldest and the present version, with rows in all tables
FIXTURES = Path(__file__).parents[1] / "fixtures"
Rows = dict[str, list[dict[str, Any]]]


def made(folder: Path, number: int = VERSION) -> Path:
    """Return the database of a state folder, with the fixture of that version."""
    return run_script(folder, FIXTURES / f"{number}.sql")


def run_script(folder: Path, script: Path) -> Path:
    """Return the database of a state folder, which a script has made."""
    (folder / "state").mkdir(mode=0o700, parents=True)
    database = folder / "state" / "state.db"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.executescript(script.read_text())
        connection.execute("PRAGMA journal_mode = WAL")
    database.chmod(0o600)
    return database


def version(database: Path) -> int:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def rows(database: Path) -> Rows:
    """Return all rows by table."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.row_factory = sqlite3.Row
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        found = [row["name"] for row in names if row["name"] != "alembic_version"]
        return {name: [dict(row) for row in connection.execute(f'SELECT * FROM "{name}"')] for name in found}


def opened(folder: Path, work: Callable[[Store], Any]) -> Any:
    async def body() -> Any:
        store = SqliteStore(folder / "state")
        try:
            await store.prepare()
            return await asyncio.wait_for(work(store), 60)
        finally:
            store.close()

    return asyncio.run(body())


def tasks(folder: Path) -> list[str]:
    async def named(store: Store) -> list[str]:
        return [task.name for task in await TodoStore(store, "local", "").all()]

    found: list[str] = opened(folder, named)
    return found


@pytest.fixture
def differences() -> Iterator[Callable[[Path], list[Any]]]:
    """Return what Alembic would change to make a database's schema that of the tables."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    def compared(database: Path) -> list[Any]:
        connection = connect(database)
        try:
            options = {"compare_type": True, "compare_server_default": True}
            return list(compare_metadata(MigrationContext.configure(connection, opts=options), tables.metadata))
        finally:
            disconnect(connection)

    yield compared


@pytest.mark.parametrize("number", [OLDEST, VERSION])
def test_a_database_of_a_version_with_a_fixture_is_upgraded_with_all_that_is_in_it(
    tmp_path: Path, number: int, differences: Callable[[Path], list[Any]]
) -> None:
    database = made(tmp_path, number)
    before = rows(database)
    assert all(before.values()), "every table of a fixture has rows"
    before.pop("schema_version", None)  # the one row that an upgrade changes

    async def used(store: Store) -> None:
        (report, tidy) = await TodoStore(store, "local", "").all()
        assert [(step.text, step.completed) for step in report.steps] == [
            ("collect figures, “über” all", True),
            ("write", False),
        ]
        assert (report.current, report.completed, tidy.completed) == (True, False, True)
        assert (await store.transact(PlanStore(store, "local", "")._read)).goal == "find out why it's slow"
        callbacks = CallbackStore(store, CallbackTimer(store, lambda _: None), "local", "")
        (callback,) = await store.transact(callbacks._read)
        assert (callback.message, callback.repeats_left) == ("look at the build", -1)
        (grant,) = await store.transact(lambda connection: grant_rows.list_unrevoked_grants(connection, client="c-1"))
        assert grant.id == before["oauth_grant"][0]["id"] and grant.family
        assert (await store.transact(lambda connection: people_rows.find_account(connection, "ada"))).subject
        (token, own) = rows(database)["oauth_access"]
        assert (token["subject"], own["subject"]) == ("s-ada", "c-1")

    opened(tmp_path, used)
    after = rows(database)
    for table in before:
        assert [{name: row[name] for name in before[table][0]} for row in after[table]] == before[table]
    assert version(database) == VERSION
    todo = "raise VERSION in server/state/tables.py, and add a migration and a fixture for this change of schema.py"
    assert differences(database) == [], todo
    copies = sorted(database.parent.glob("state.db.before-*"))
    assert [copy.name for copy in copies] == ([f"state.db.before-{VERSION}"] if number < VERSION else [])


@pytest.mark.parametrize("words", [(), ("-t", "--port", "0"), ("user", "add", "ada"), ("doctor", "--browser", "none")])
def test_a_state_of_a_version_before_the_oldest_is_refused_with_the_way_out(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    database = made(tmp_path, OLDEST)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute(f"PRAGMA user_version = {OLDEST - 1}")
    before = rows(database)
    done = run(tmp_path, *words, "--state", "state", stdin="correct horse")
    assert done.returncode == (1 if "doctor" in words else 2), done
    said = done.stdout + done.stderr
    assert f"version {OLDEST - 1}" in said and f"from {OLDEST} on" in said
    assert "start a Toolgate between the two once" in said
    assert rows(database) == before and not list(database.parent.glob("state.db.before-*"))


def test_the_present_version_is_the_last_migration_and_has_a_fixture(
    tmp_path: Path, differences: Callable[[Path], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from alembic.script import ScriptDirectory

    def stamped(database: Path) -> tuple[list[Any], Any]:
        with contextlib.closing(sqlite3.connect(database)) as connection:
            own = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
            return connection.execute("SELECT version_num FROM alembic_version").fetchall(), own

    scripts = ScriptDirectory(str(migrate.MIGRATIONS))
    assert scripts.get_heads() == [migrate.format_revision(VERSION)]
    assert {int(path.stem) for path in FIXTURES.glob("*.sql")} == {OLDEST, VERSION}
    assert tasks(tmp_path) == []
    database = tmp_path / "state" / "state.db"
    assert differences(database) == []
    new, table = stamped(database)
    assert new == [(migrate.format_revision(VERSION),)]
    older = made(tmp_path / "older")
    with contextlib.closing(sqlite3.connect(older)) as connection:
        connection.execute("DROP TABLE alembic_version")  # Alembic makes its own
    of_the_next_version(tmp_path, "", monkeypatch)
    opened(tmp_path / "older", lambda store: store.prepare())
    assert stamped(older) == ([(migrate.format_revision(VERSION + 1),)], table)


@pytest.mark.soak
def test_the_fixture_of_a_next_version_can_be_made(tmp_path: Path) -> None:
    database = made(tmp_path)
    script = tmp_path / "now.sql"
    script.write_text(fixture.made(tmp_path / "used"))
    now = rows(run_script(tmp_path / "now", script))
    assert now.keys() == rows(database).keys() and all(now.values())


FIRST = """
import sqlalchemy as sa
from alembic import op
revision, down_revision = "{next:04}", "{last:04}"

def upgrade():
    with op.batch_alter_table("task") as batch:  # makes it anew: its rows' steps must not go with the old one
        batch.add_column(sa.Column("colour", sa.String))
    with open({marker!r}, "a") as file:
        file.write("in the midst\\n")
    {then}
"""


def next_migrations(folder: Path, then: str) -> Path:
    """Return the migrations of a next version, which does more after its change."""
    migrations = folder / "migrations"
    shutil.copytree(migrate.MIGRATIONS, migrations, ignore=shutil.ignore_patterns("__pycache__"))
    text = FIRST.format(next=VERSION + 1, last=VERSION, marker=str(folder / "marker"), then=then)
    (migrations / "versions" / "next.py").write_text(text)
    return migrations


def of_the_next_version(folder: Path, then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "MIGRATIONS", next_migrations(folder, then))
    for module in (migrate, upgrade, store_module):
        monkeypatch.setattr(module, "VERSION", VERSION + 1)


def test_a_rebuilt_table_keeps_its_rows_children_and_the_last_two_copies_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = made(tmp_path)
    for name in ("0", "1", "mine"):
        (database.parent / f"state.db.before-{name}").write_text(name)
    before = rows(database)["step"]
    of_the_next_version(tmp_path, "", monkeypatch)
    assert tasks(tmp_path) == ["write the report", "tidy up"]
    assert before and rows(database)["step"] == before
    assert "colour" in rows(database)["task"][0] and version(database) == VERSION + 1
    kept = {path.name.rpartition("-")[2] for path in database.parent.glob("state.db.before-*")}
    assert kept == {"1", str(VERSION + 1), "mine"}


def test_an_upgrade_that_fails_changes_nothing_and_says_where_the_copy_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    database = made(tmp_path)
    before = rows(database)
    for then, said in (
        ("raise LookupError('on purpose')", "on purpose"),
        ("op.execute('DELETE FROM task')", "rows without what they belong to"),
    ):
        with monkeypatch.context() as patch:
            of_the_next_version(tmp_path / said, then, patch)
            with pytest.raises(StateError, match=f"it is unchanged, and state.db.before-{VERSION + 1} beside it"):
                tasks(tmp_path)
        assert said in caplog.text
        assert (version(database), rows(database)) == (VERSION, before)
        assert rows(database.with_name(f"state.db.before-{VERSION + 1}")) == before
    assert tasks(tmp_path) == ["write the report", "tidy up"]


def test_an_upgrade_that_cant_be_written_down_changes_nothing_and_keeps_every_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    database = made(tmp_path)
    for name in ("3", "4", "5"):
        (database.parent / f"state.db.before-{name}").write_text(name)
    before, run_migrations = rows(database), migrate.run_migrations

    def full(_connection: Any) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorname = "SQLITE_FULL"
        raise error

    def migrated(connection: Any, found: int) -> None:
        run_migrations(connection, found)
        event.listen(connection.engine, "commit", full)

    with monkeypatch.context() as patch:
        of_the_next_version(tmp_path, "", patch)
        patch.setattr(migrate, "run_migrations", migrated)
        with pytest.raises(StateError, match="the disk is full"):
            tasks(tmp_path)
    assert (version(database), rows(database)) == (VERSION, before)
    assert {path.name.rpartition("-")[2] for path in database.parent.glob("state.db.before-*")} == {
        "3",
        "4",
        "5",
        str(VERSION + 1),
    }
    assert "is upgraded from" not in caplog.text


def test_without_room_for_a_copy_nothing_is_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = made(tmp_path)
    before = rows(database)

    class Full(sqlite3.Connection):
        def backup(self, *_: Any, **__: Any) -> None:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorname = "SQLITE_FULL"
            raise error

    with monkeypatch.context() as patch:
        of_the_next_version(tmp_path, "", patch)
        connect = sqlite3.connect
        patch.setattr(sqlite3, "connect", lambda *words, **how: connect(*words, **{"factory": Full, **how}))
        with pytest.raises(StateError, match=r"no copy of the state database can be made before its upgrade: .*full"):
            tasks(tmp_path)
    assert (version(database), rows(database)) == (VERSION, before)
    assert [path.name for path in database.parent.glob("*before*")] == []


def upgraded(database: Path, migrations: Path) -> multiprocessing.process.BaseProcess:
    """Upgrade to the next version in another process, which has imported Alembic already."""

    def work() -> None:
        migrate.MIGRATIONS = migrations
        store_module.VERSION = migrate.VERSION = upgrade.VERSION = VERSION + 1
        assert tasks(database.parent.parent) == ["write the report", "tidy up"]

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def test_kill_9_in_the_midst_changes_nothing_and_of_two_that_start_at_once_the_second_waits(tmp_path: Path) -> None:
    database, gate, marker = made(tmp_path), tmp_path / "gate", tmp_path / "marker"
    before = rows(database)
    imports = "from pathlib import Path; from tests.clients.raw_client import eventually"
    waits = f"{imports}; eventually(Path({str(gate)!r}).exists)"
    migrations = next_migrations(tmp_path, waits)
    first = upgraded(database, migrations)
    assert eventually(lambda: marker.exists() and marker.read_text() == "in the midst\n")
    first.kill()
    first.join(20)
    assert (version(database), rows(database)) == (VERSION, before)
    others = [upgraded(database, migrations) for _ in range(2)]
    assert eventually(lambda: marker.read_text() == "in the midst\n" * 2)  # the first's, and one of these
    assert all(process.is_alive() for process in others)
    gate.touch()
    for process in others:
        process.join(60)
    assert [process.exitcode for process in others] == [0, 0]
    assert marker.read_text() == "in the midst\n" * 2
    assert version(database) == VERSION + 1 and rows(database)["step"] == before["step"]


def test_one_that_is_open_while_a_newer_toolgate_upgrades_it_is_not_written_to_any_more(tmp_path: Path) -> None:
    database = made(tmp_path)

    async def work(store: Store) -> None:
        tasks = TodoStore(store, "local", "")
        await tasks.create("before")
        with contextlib.closing(sqlite3.connect(database)) as other:
            other.execute("PRAGMA user_version = 99")
        with pytest.raises(StateVersionError, match="version 99"):
            await tasks.create("after")

    opened(tmp_path, work)
    assert [row["name"] for row in rows(database)["task"]][-1] == "before"


def test_one_goes_on_where_a_newer_toolgate_only_adds_to_it(tmp_path: Path) -> None:
    database = made(tmp_path)

    async def work(store: Store) -> None:
        tasks = TodoStore(store, "local", "")
        await tasks.create("before")
        with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as other:
            other.execute("ALTER TABLE task ADD COLUMN colour VARCHAR")
            other.execute("UPDATE schema_version SET version = 99")  # compatible since this one
            other.execute("PRAGMA user_version = 99")
        await tasks.create("after")

    opened(tmp_path, work)
    assert tasks(tmp_path)[-2:] == ["before", "after"]  # one that starts then
    assert version(database) == 99
    told = run(tmp_path, "doctor", "--browser", "none", "--state", "state").stdout
    assert "intact; version 99" in told


@pytest.mark.parametrize("words", [(), ("-t", "--port", "0"), ("user", "add", "ada")])
def test_a_newer_state_is_refused_as_a_wrong_command_line_is(tmp_path: Path, words: tuple[str, ...]) -> None:
    database = made(tmp_path)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA user_version = 99")
    told = run(tmp_path, *words, "--state", "state", stdin="correct horse")
    assert told.returncode == 2, told
    assert "made by a newer Toolgate (version 99" in told.stderr and "--state" in told.stderr


def test_a_command_that_reads_an_older_state_says_once_what_upgrades_it(tmp_path: Path) -> None:
    database = made(tmp_path, OLDEST)
    told = run(tmp_path, "user", "list", "--state", "state")
    assert (told.returncode, told.stderr) == (
        1,
        f"toolgate: the state database is of version {OLDEST}, and serving upgrades it to {VERSION}; nothing was "
        "changed: run toolgate backup before, to be able to go back\n",
    )
    assert version(database) == OLDEST


ORDINARY = """
import asyncio, sys
from pathlib import Path
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.state.store import Store

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    await store.prepare()
    await store.transact(lambda _: None)
    print([name for name in sys.modules if name.startswith("alembic")])
    store.close()

asyncio.run(main())
"""


def test_an_ordinary_start_imports_no_alembic(tmp_path: Path) -> None:
    words = [sys.executable, "-c", ORDINARY, str(tmp_path / "state")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done
