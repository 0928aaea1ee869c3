"""Run transactions on the state database: one SQLite file, one thread, one transaction at a time.

    result = await store.transact(function)     # function(connection) runs whole or not at all

A finished transaction survives `kill -9`, and several processes may use one file. SQLAlchemy costs 370 ms to import, so
nothing imports it before the first transaction. A flag answers the most common question without one.
"""

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from toolgate.server.state import tables
from toolgate.server.state.db_thread import DatabaseThread
from toolgate.server.state.sqlite import NewerStateError as NewerStateError
from toolgate.server.state.sqlite import StateError as StateError
from toolgate.server.state.sqlite import check_database as check_database
from toolgate.server.state.sqlite import (
    connect,
    describe_error,
    disconnect,
    error_name,
    move_stale_log,
    read_header_version,
    version_of_raw,
)
from toolgate.server.state.tables import VERSION as VERSION

if TYPE_CHECKING:
    from sqlalchemy import Connection as Connection  # the rest of the server imports it from here
    from sqlalchemy import RootTransaction

LOCKED = ("SQLITE_BUSY", "SQLITE_LOCKED")
T = TypeVar("T")

BUSY = 2.0  # seconds to wait for another process's transactions, each of which takes milliseconds
CLOSE_WITHIN = 0.3  # seconds for running transactions when the store is closed

log = logging.getLogger(__name__)


class Store:
    """The database `state.db` and the markers in `flags/` of `folder`, which is created when it is first needed.

    Without `upgrades` a database of an older version is refused: after an upgrade the older Toolgate could not use it.
    """

    def __init__(self, folder: Path, *, upgrades: bool = True) -> None:
        self.folder = folder
        self.path = folder / "state.db"
        self._upgrades = upgrades
        self._worker: DatabaseThread | None = None
        self._connection: Connection | None = None
        self._file: tuple[int, int] | None = None  # device and inode of what is open
        self._closed = False

    async def transact(self, function: "Callable[[Connection], T]") -> T:
        """Run `function` in one transaction, in the store's thread. Its exceptions roll back and pass through.

        The transaction holds the write lock from its first statement, so what it reads stays true until it ends. When
        the caller is cancelled, the transaction is done whole or not at all. Raises StateError.
        """
        if self._closed:
            raise StateError("the server is shutting down: its state is closed")
        if self._worker is None:
            self._worker = DatabaseThread("state")
        return await self._worker.run(partial(self._transact, function, time.monotonic() + BUSY))

    async def prepare(self) -> None:
        """Upgrade a database of an older version now, rather than at the first transaction.

        Opens no other database. Raises StateError, and NewerStateError for one of a newer Toolgate.
        """
        # only while SQLite has it not open: closing a file ends SQLite's locks on it
        version = read_header_version(self.path) if self._worker is None else None
        if version is None or version == VERSION:
            return
        if version > VERSION:
            raise self._newer(version)
        await self.transact(lambda _: None)

    def set_flag(self, kind: str, key: str, on: bool) -> None:
        """Set or remove a marker that `has_flag` sees. Call it inside a transaction only.

        A superfluous marker costs a read of the database, a missing one loses data. So it is set in the transaction
        that makes it true, before the commit, and removed in a later one that found nothing (`clear_flag_unless`).
        Raises StateError.
        """
        mark = self._mark(kind, key)
        try:
            if on:
                make_private_folder(mark.parent)
                mark.touch(0o600)
            else:
                mark.unlink(missing_ok=True)
        except OSError as error:
            raise self._unusable("can't be written", error) from error

    def has_flag(self, kind: str, key: str) -> bool:
        """Return whether the marker is set. Costs a stat, and never opens the database."""
        return self._mark(kind, key).exists()

    async def clear_flag_unless(self, kind: str, key: str, needed: "Callable[[Connection], bool]") -> None:
        """Remove the marker, unless `needed` finds in the database what it stands for."""

        def settle(connection: "Connection") -> None:
            if not needed(connection):
                self.set_flag(kind, key, False)

        await self.transact(settle)

    def is_empty(self) -> bool:
        """Return whether nothing was ever stored. Costs a stat, and never opens the database."""
        return self._worker is None and not self.path.exists()

    def to_state_error(self, error: Exception) -> StateError:
        """Return the error for the caller of a transaction that raised `error`, which is logged."""
        return error if isinstance(error, StateError) else self._unusable(describe_error(error), error)

    def close(self) -> None:
        """Let running transactions finish, for a third of a second at most, and close the file for good.

        The others raise StateError.
        """
        self._closed = True
        if self._worker is not None:
            late = StateError("the server shut down before this was stored")
            self._worker.close(self._close, CLOSE_WITHIN, late)
            self._worker = None

    def _mark(self, kind: str, key: str) -> Path:
        if not key:
            return self.folder / "flags" / kind
        import hashlib  # start-up

        name = hashlib.sha256(key.encode()).hexdigest()[:32]  # a key may have any characters, a file name may not
        return self.folder / "flags" / f"{kind}-{name}"

    def _transact(self, function: "Callable[[Connection], T]", until: float) -> T:
        import sqlite3  # start-up

        from sqlalchemy.exc import DBAPIError

        try:
            with self._begin(until) as transaction:
                return function(transaction.connection)
        except (DBAPIError, sqlite3.Error) as error:  # `_prepare` raises the second
            raise self.to_state_error(error) from error

    def _begin(self, until: float) -> "RootTransaction":
        """Return a transaction once no other process has the write lock. Raises after `until`, or when closed."""
        import sqlite3  # start-up

        from sqlalchemy.exc import DBAPIError

        while True:
            try:
                if self._connection is not None and self._file != self._file_identity():
                    log.warning("%s was removed or replaced: using the new file", self.path)
                    self._close()
                if self._connection is None:
                    self._connection = self._open()
                transaction = self._connection.begin()
                if _version(self._connection) == VERSION:
                    return transaction
                transaction.rollback()  # another process upgraded it: opening it again reports that
                self._close()
            except (DBAPIError, sqlite3.Error) as error:
                if self._closed or time.monotonic() > until or error_name(error) not in LOCKED:
                    raise

    def _file_identity(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _open(self) -> "Connection":
        try:
            make_private_folder(self.folder)
            if not self.path.exists():
                self._make()
        except OSError as error:
            raise self._unusable("can't be created", error) from error
        self._file = self._file_identity()
        connection = connect(self.path)
        try:
            version = _version(connection)
            self._check(version)
            if version < VERSION:
                disconnect(connection)
                self._upgrade()
                connection = connect(self.path)
        except BaseException:
            disconnect(connection)
            raise
        return connection

    def _upgrade(self) -> None:
        from toolgate.server.state import migrate  # start-up, and then it imports Alembic

        try:
            migrate.upgrade_database(self.path)
        except OSError as error:
            raise self._unusable("can't be upgraded", error) from error

    def _check(self, version: int) -> None:
        if version > VERSION:
            raise self._newer(version)
        if version < 1:  # it is linked into place with its version set
            raise self._unusable("was not made by Toolgate, or is damaged", None)
        if version < VERSION and not self._upgrades:
            upgrade = f"serving upgrades it to {VERSION}: toolgate backup before, to be able to go back"
            raise self._unusable(f"is of version {version}, and {upgrade}", None)

    def _newer(self, version: int) -> NewerStateError:
        log.error("the state database %s is of version %d, this Toolgate knows %d", self.path, version, VERSION)
        return NewerStateError(
            f"the state database was made by a newer Toolgate (version {version}, this one knows {VERSION}); nothing "
            "was changed: use that one, or another --state"
        )

    def _make(self) -> None:
        """Create the database under another name, then link it into place.

        So it is never incomplete, and of two processes that start at once one wins.
        """
        draft = self.folder / f".state-{os.urandom(8).hex()}.db"
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            connection = connect(draft)
            try:
                with connection.begin():
                    _fill(connection)
            finally:
                disconnect(connection)
            if (path := move_stale_log(self.path)) is not None:
                log.warning("moved the log of a missing database to %s", path)
            os.link(draft, self.path)
        except FileExistsError:
            log.debug("another process created %s first", self.path)
        finally:
            for path in self.folder.glob(f"{draft.name}*"):
                path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._connection is not None:
            disconnect(self._connection)
            self._connection = None

    def _unusable(self, what: str, cause: Exception | None) -> StateError:
        log.error("the state database %s %s%s", self.path, what, f": {cause}" if cause else "")
        return StateError(f"the state database {what}; nothing was changed, and the server's log says more")


def make_private_folder(folder: Path) -> None:
    """Create `folder` for its owner alone. An existing one is left unchanged: it may be any folder, even /tmp."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _fill(connection: "Connection") -> None:
    """Create the tables."""
    from toolgate.server.state import migrate  # start-up; this much of it imports no Alembic

    tables.metadata.create_all(connection)
    migrate.stamp_version(connection)


def _version(connection: "Connection") -> int:
    raw: Any = connection.connection.driver_connection
    return version_of_raw(raw)
