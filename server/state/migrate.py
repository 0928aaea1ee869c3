"""Brings a state database of an older version up to this one by Alembic's migrations. Knows nothing of what is stored.

All of an upgrade is one transaction, and a copy is made before: what goes wrong, or is killed, leaves the database as
it was. Of several processes that start at once one upgrades, and the others wait. Alembic costs a second to import, so
nothing else imports it.

    state.db.before-5      as it was before it became version 5; the last two are kept
"""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.server.state import snapshot
from toolgate.server.state.sqlite import StateError, connect, describe_error, disconnect, error_name, version_of
from toolgate.server.state.tables import VERSION

if TYPE_CHECKING:
    from sqlalchemy import Connection

MIGRATIONS = Path(__file__).parent / "migrations"
COPIES = 2  # that are kept
WITHIN = 60.0  # seconds to wait for the process that upgrades already
LOOK = 0.05  # seconds between two looks whether it has done
REVISIONS = (  # Alembic's own table, to the letter
    "CREATE TABLE alembic_version (\n\tversion_num VARCHAR(32) NOT NULL, \n\t"
    "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)\n)"
)

log = logging.getLogger(__name__)


class UpgradeError(StateError):
    """It is as it was; where there is a copy by now, the text names it."""


def format_revision(version: int) -> str:
    """What Alembic calls the migration to a version."""
    return f"{version:04}"


def stamp_version(connection: "Connection") -> None:
    """Say in a new database that it is of this version: to us, and to Alembic as its own table would."""
    connection.exec_driver_sql(REVISIONS)
    connection.exec_driver_sql(f"INSERT INTO alembic_version VALUES ('{format_revision(VERSION)}')")  # noqa: S608
    connection.exec_driver_sql(f"PRAGMA user_version = {VERSION}")


def upgrade_database(path: Path) -> None:
    """Upgrade the database, unless another process just did. Raises NotUpgraded, and what SQLite raises where
    others hold it."""
    import_module("alembic.command")  # before the locks: it takes a second

    began = time.monotonic()
    with _hold_upgrade_lock(path):
        with contextlib.closing(_UpgradeConnection(path)) as bare, bare.connection.begin():
            found = version_of(bare.connection)
            copy = _upgrade(bare.connection, path, found) if found < VERSION else None
        if copy is not None:  # and the upgrade is written down
            _forget_copies(path)
            took = time.monotonic() - began
            log.warning(
                "%s is upgraded from version %d to %d in %.1f s: before, it was %s", path, found, VERSION, took, copy
            )


class _UpgradeConnection:
    """A connection that enforces no foreign keys, closed with its engine."""

    def __init__(self, path: Path) -> None:
        self.connection = connect(path, foreign_keys=False)

    def close(self) -> None:
        disconnect(self.connection)


def _upgrade(connection: "Connection", path: Path, found: int) -> Path:
    """Gives the copy of what there was."""
    try:
        copy = _copy_database(path)
    except Exception as error:
        why = f": {describe_error(error)}" if error_name(error) else ""
        log.error("no copy of %s can be made before it is upgraded: %s", path, error)
        raise UpgradeError(
            f"no copy of the state database can be made before its upgrade{why}; nothing was changed"
        ) from error
    try:
        run_migrations(connection, found)
        _check(connection)
    except Exception as error:
        log.exception(
            "%s can't be upgraded from version %d to %d: it is as it was, and so is %s", path, found, VERSION, copy
        )
        raise UpgradeError(
            f"the state database can't be upgraded from version {found} to {VERSION}; it is as it was, and "
            f"{copy.name} beside it is a copy. The server's log says why"
        ) from error
    return copy


def run_migrations(connection: "Connection", found: int) -> None:
    """Make the tables of version `found` those of this one. What user_version says counts, whatever Alembic's table
    does: a database had no such table up to version 4."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))  # "%" begins an interpolation
    config.attributes["connection"] = connection
    command.stamp(config, format_revision(found), purge=True)
    command.upgrade(config, "head")
    connection.exec_driver_sql(f"PRAGMA user_version = {VERSION}")


def _check(connection: "Connection") -> None:
    """No row refers to one that is not there."""
    orphans = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(3)
    if orphans:
        raise ValueError(f"rows without what they belong to: {', '.join(map(str, orphans))}")


def _copy_database(path: Path) -> Path:
    """A copy of what is there now: nobody can write meanwhile."""
    made, draft = path.with_name(f"{path.name}.before-{VERSION}"), path.with_name(f".before-{os.urandom(8).hex()}.db")
    snapshot.copy_database(path, draft)
    return draft.rename(made)


def _forget_copies(path: Path) -> None:
    found = {each: each.name.rpartition("-")[2] for each in path.parent.glob(f"{path.name}.before-*")}
    numbered = sorted((each for each, number in found.items() if number.isdecimal()), key=lambda each: int(found[each]))
    for each in numbered[:-COPIES]:
        each.unlink(missing_ok=True)


@contextlib.contextmanager
def _hold_upgrade_lock(path: Path) -> Generator[None]:
    """While no other process upgrades. The system lets the lock go when its holder dies, however it dies."""
    held = os.open(path.with_name(".upgrading"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.geteuid() == 0:  # who upgrades next may be the one that the database belongs to
            owner = path.stat()
            os.fchown(held, owner.st_uid, owner.st_gid)
        until = time.monotonic() + WITHIN
        while not _try_lock(held):
            if time.monotonic() > until:
                raise UpgradeError("the state database is being upgraded by another process: try again")
            time.sleep(LOOK)
        yield
    finally:
        os.close(held)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
