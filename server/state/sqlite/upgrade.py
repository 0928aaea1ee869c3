"""Upgrade an SQLite state database of an older version.

An upgrade is one transaction, after a copy: a failure or a kill leaves the database unchanged. Of several processes
that start at once one upgrades, and the others wait.

    state.db.before-5      the copy from before the upgrade to version 5; the last two are kept
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

from toolgate.server.base.errors import StateError
from toolgate.server.state import migrate
from toolgate.server.state.sqlite import snapshot
from toolgate.server.state.sqlite.database import connect, describe_error, disconnect, error_name, version_of
from toolgate.server.state.tables import VERSION
from toolgate.tools.api.regular_file import open_or_replace

if TYPE_CHECKING:
    from sqlalchemy import Connection

COPIES = 2  # copies that are kept
WITHIN = 60.0  # seconds to wait for another process that upgrades
LOOK = 0.05  # seconds between two tries for its lock

log = logging.getLogger(__name__)


class UpgradeError(StateError):
    """The database is unchanged; the text names the copy, if there is one."""


def upgrade_database(path: Path) -> None:
    """Upgrade the database, unless another process just did. Raises UpgradeError and SQLite's errors."""
    import_module("alembic.command")  # before the locks: it takes a second

    began = time.monotonic()
    with _hold_upgrade_lock(path):
        with contextlib.closing(_UpgradeConnection(path)) as bare, bare.connection.begin():
            version = version_of(bare.connection)
            copy = _upgrade(bare.connection, path, version) if version < VERSION else None
        if copy is not None:  # and the upgrade is committed
            _forget_copies(path)
            took = time.monotonic() - began
            log.warning(
                "%s is upgraded from version %d to %d in %.1f s; the copy from before is %s",
                path,
                version,
                VERSION,
                took,
                copy,
            )


class _UpgradeConnection:
    """A connection that enforces no foreign keys, closed with its engine."""

    def __init__(self, path: Path) -> None:
        self.connection = connect(path, foreign_keys=False)

    def close(self) -> None:
        disconnect(self.connection)


def _upgrade(connection: "Connection", path: Path, version: int) -> Path:
    """Upgrade the database, and return the copy from before."""
    try:
        copy = _copy_database(path)
    except Exception as error:
        why = f": {describe_error(error)}" if error_name(error) else ""
        log.error("no copy of %s can be made before its upgrade: %s", path, error)
        raise UpgradeError(
            f"no copy of the state database can be made before its upgrade{why}; nothing was changed"
        ) from error
    try:
        migrate.run_migrations(connection, version)
        _check(connection)
    except Exception as error:
        log.exception(
            "can't upgrade %s from version %d to %d; it is unchanged, and %s is a copy", path, version, VERSION, copy
        )
        raise UpgradeError(
            f"the state database can't be upgraded from version {version} to {VERSION}; it is unchanged, and "
            f"{copy.name} beside it is a copy. The server's log says why"
        ) from error
    return copy


def _check(connection: "Connection") -> None:
    """Raise ValueError where a row refers to a missing one."""
    orphans = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(3)
    if orphans:
        raise ValueError(f"rows without what they belong to: {', '.join(map(str, orphans))}")


def _copy_database(path: Path) -> Path:
    """Return a copy of the database, which no process can write to meanwhile."""
    copy, draft = path.with_name(f"{path.name}.before-{VERSION}"), path.with_name(f".before-{os.urandom(8).hex()}.db")
    snapshot.copy_database(path, draft)
    return draft.rename(copy)


def _forget_copies(path: Path) -> None:
    copies = {copy.name.rpartition("-")[2]: copy for copy in path.parent.glob(f"{path.name}.before-*")}
    for number in sorted(map(int, filter(str.isdecimal, copies)))[:-COPIES]:
        copies[str(number)].unlink(missing_ok=True)


@contextlib.contextmanager
def _hold_upgrade_lock(path: Path) -> Generator[None]:
    """Hold the lock for upgrades. The system releases it when its holder dies."""
    descriptor = open_or_replace(path.with_name(".upgrading"), os.O_RDWR | os.O_CREAT)
    try:
        if os.geteuid() == 0:  # the next to upgrade may be the owner of the database
            owner = path.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        until = time.monotonic() + WITHIN
        while not _try_lock(descriptor):
            if time.monotonic() > until:
                raise UpgradeError("the state database is being upgraded by another process: try again")
            time.sleep(LOOK)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
