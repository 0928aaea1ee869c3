"""Move the rows of a state between PostgreSQL and an SQLite file, the form that backups have.

The highest numbers of rows move, too, so that none is given twice. Sessions stay behind, as in every backup.
"""

import asyncio
import os
import shutil
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolgate.server.features.postgres.database_url import DatabaseUrl
from toolgate.server.features.postgres.key_table import NAMES, KeyTable
from toolgate.server.features.postgres.open_store import SEALED, has_keys, open_store
from toolgate.server.state import flags, migrate, tables
from toolgate.server.state.backup.manifest import DATABASE, BackupError
from toolgate.server.state.backup.restore import begin_replacement, finish_replacement, make_aside_folder
from toolgate.server.state.backup.state_transfer import ExportedState
from toolgate.server.state.keys import file as key_file
from toolgate.server.state.sqlite import database as sqlite
from toolgate.server.state.sqlite.store import SqliteStore, flag_file
from toolgate.server.state.store import Store

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection

BATCH = 500  # rows in memory at a time
ROWS = "postgresql"  # a folder for rows, where the state folder had a database, too
WITHIN = 3_600.0  # seconds for all of them


class PostgresTransfer:
    """The rows in PostgreSQL, of the server with the folder `state`. `secret` opens the keys there."""

    def __init__(self, state: Path, url: DatabaseUrl, secret: bytes | None) -> None:
        self._state = state
        self._url = url
        self._secret = secret

    def export_database(self, folder: Path) -> ExportedState:
        async def work() -> ExportedState:
            async with aclosing(self._open_store(upgrades=False)) as store:
                return await store.read(partial(_export, folder, _open_table(store, self._secret)))

        return asyncio.run(work())

    def replace(self, staging: Path, *, replace: bool) -> Path | None:
        """Do as `StateTransfer` says: the journal of the moves ends after the rows are stored."""
        come, before = staging / "come", staging / "before"

        async def work() -> Path | None:
            if (come / DATABASE).exists():
                async with aclosing(SqliteStore(come)) as file:
                    await file.prepare()  # of an older version
            async with aclosing(self._open_store(upgrades=True)) as store:
                table = _open_table(store, self._secret)

                def replace_all(rows: "Connection") -> Path | None:
                    keys = _read_keys(table, rows)
                    _replace_rows(rows, come, before, replace=replace)
                    if table is not None:
                        table.from_files(rows, _take_keys(come / "keys"))
                    return _replace_files(come, before, self._state, keys)

                aside = await store.transact(replace_all)
                finish_replacement(come)
                return aside

        return asyncio.run(work())

    def _open_store(self, *, upgrades: bool) -> Store:
        return open_store(self._state, self._url, upgrades=upgrades, within=WITHIN)


def _export(folder: Path, table: KeyTable | None, source: "Connection") -> ExportedState:
    keys = _read_keys(table, source)
    _write_file(source, folder)
    flag_names = sorted(flag_file(kind, key) for kind, key in _list_flags(source))
    return ExportedState(tables.VERSION, flag_names, keys)


def _open_table(store: Store, secret: bytes | None) -> KeyTable | None:
    return None if secret is None else KeyTable(store, secret)


def _read_keys(table: KeyTable | None, connection: "Connection") -> dict[str, bytes]:
    """Return the sealing keys as files. Raises BackupError where there are some, and no secret."""
    if table is not None:
        return table.to_files(connection)
    if has_keys(connection):
        raise BackupError(SEALED)
    return {}


def _replace_files(come: Path, before: Path, state: Path, keys: Mapping[str, bytes]) -> Path | None:
    """Replace what the backup has in the state folder. Return the folder with that, and with earlier rows and `keys`.

    If the state folder had a database of its own, the rows are in a folder beside that.
    """
    with_database = (come / DATABASE).exists()
    (come / DATABASE).unlink(missing_ok=True)
    shutil.rmtree(come / "flags", ignore_errors=True)  # files of SQLite
    aside = begin_replacement(come, state, with_database=with_database)
    if before.exists():
        aside = aside or make_aside_folder(state)
        place = aside / ROWS if os.path.lexists(aside / DATABASE) else aside
        place.mkdir(mode=0o700, exist_ok=True)
        (before / DATABASE).rename(place / DATABASE)
        for name, key in keys.items():
            key_file.create_file(place / "keys" / name, key)
    return aside


def _take_keys(folder: Path) -> dict[str, bytes]:
    """Return the files of the keys that PostgreSQL has, and remove them."""
    found: dict[str, bytes] = {}
    for path in folder.glob("*") if folder.is_dir() else ():
        if key_file.parse_name(path.name)[0] in NAMES:
            found[path.name] = key_file.read_key(path)
            path.unlink()
    return found


def _write_file(source: "Connection", folder: Path) -> None:
    file = folder / DATABASE
    os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
    target = sqlite.connect(file)
    try:
        with target.begin():
            migrate.create_tables(target)
            _copy_rows(source, target)
        raw: Any = target.connection.driver_connection
        raw.execute("PRAGMA journal_mode = DELETE")  # one file, without a log
    finally:
        sqlite.disconnect(target)


def _replace_rows(target: "Connection", come: Path, before: Path, *, replace: bool) -> None:
    """Replace the rows by those in `come`, and move earlier ones to a file in `before`."""
    from toolgate.server.features.postgres.database import preparation  # start-up

    target.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")  # files are moved meanwhile
    if preparation.is_in_use(target):
        raise BackupError("a server uses the database: stop it first")
    if any(target.execute(table.select().limit(1)).first() for table in _list_tables()):
        if not replace:
            raise BackupError("the database is not empty: --replace moves its rows to a file")
        before.mkdir(mode=0o700)
        _write_file(target, before)
    for table in reversed(_list_tables(sessions=True)):
        target.execute(table.delete())
    if (come / DATABASE).exists():
        source = sqlite.connect(come / DATABASE)
        try:
            with source.begin():
                _copy_rows(source, target)
        finally:
            sqlite.disconnect(source)


def _list_tables(*, sessions: bool = False) -> list[Any]:
    """Return the tables that move, each after those that it refers to."""
    stay = [tables.schema_version, tables.sealing_key, tables.deployment]
    stay += [] if sessions else [tables.session, tables.session_message]
    return [table for table in tables.metadata.sorted_tables if table not in stay]


def _copy_rows(source: "Connection", target: "Connection") -> None:
    streamed = {"stream_results": True, "yield_per": BATCH}
    for table in _list_tables():
        for rows in source.execute(table.select(), execution_options=streamed).mappings().partitions(BATCH):
            target.execute(table.insert(), [dict(row) for row in rows])
        if table.dialect_options["sqlite"]["autoincrement"]:
            _set_last_number(target, table.name, _read_last_number(source, table.name))


def _read_last_number(connection: "Connection", table: str) -> int:
    """Return the highest number that was given to a row."""
    if connection.dialect.name == "sqlite":
        found = connection.exec_driver_sql("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).scalar()
    else:
        found = connection.exec_driver_sql(
            f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {table}_id_seq"  # noqa: S608
        ).scalar()
    return int(found or 0)


def _set_last_number(connection: "Connection", table: str, number: int) -> None:
    if number == 0:
        return
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
        connection.exec_driver_sql("INSERT INTO sqlite_sequence VALUES (?, ?)", (table, number))
    else:
        connection.exec_driver_sql(f"SELECT setval('{table}_id_seq', {number})")


def _list_flags(connection: "Connection") -> list[tuple[str, str]]:
    """Return kind and key of each flag that the rows need."""
    present = {
        flags.CALLBACKS: tables.callback,
        flags.EVENTS: tables.event_log,
        flags.TASKS: tables.deferral,
        flags.PLACES: tables.place,
    }
    needed = [(kind, "") for kind, table in present.items() if connection.execute(table.select().limit(1)).first()]
    for row in connection.execute(tables.plan.select()):
        needed += [(flags.PLAN_EXISTS, row.principal), *([(flags.PLAN_ACTIVE, row.principal)] if row.active else [])]
    if connection.execute(tables.mount_choice.select().limit(1)).first():
        needed.append((flags.MOUNT_CHOICES, "anybody"))
    for kind, column in (
        (flags.APPROVALS, tables.approval.c.principal),
        (flags.EVENTS, tables.event_log.c.principal),
        (flags.MOUNT_BASELINE, tables.mount_baseline.c.mount),
    ):
        needed += [(kind, key) for key in connection.execute(tables.select(column).distinct()).scalars()]
    pin = tables.mount_pin
    refused = tables.select(pin.c.mount).where(pin.c.standing == "refused").distinct()
    return needed + [(flags.MOUNT_REFUSALS, mount) for mount in connection.execute(refused).scalars()]
