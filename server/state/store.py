"""The state database: one SQLite file, one thread, one transaction at a time. Knows nothing of what is stored
in it.

    answered = await store.transact(function)     # function(connection) runs whole or not at all

What `transact` has returned survives `kill -9`, and two processes may use one file. SQLAlchemy costs 370 ms
to import, so nothing here imports it before the first transaction; a flag answers the commonest question
without one.
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
    from sqlalchemy import Connection as Connection  # again by this name: the rest of the server sees it here only
    from sqlalchemy import RootTransaction

T = TypeVar("T")

BUSY = 2.0  # seconds to wait for another process's transactions, each of which takes milliseconds
CLOSE_WITHIN = 0.3  # seconds for what is under way when the store is closed

log = logging.getLogger(__name__)


class Store:
    """`state.db` and `flags/` in `folder`, which is made, for its owner alone, when it is first needed. Without
    `upgrades` a database of an older version is refused: the older Toolgate could not use it any more."""

    def __init__(self, folder: Path, *, upgrades: bool = True) -> None:
        self.folder = folder
        self.path = folder / "state.db"
        self._upgrades = upgrades
        self._worker: DatabaseThread | None = None
        self._connection: Connection | None = None
        self._file: tuple[int, int] | None = None  # device and inode of what is open
        self._closed = False

    async def transact(self, function: "Callable[[Connection], T]") -> T:
        """Run `function` in one transaction, in the store's own thread. Its exceptions roll back and pass
        through.

        The transaction holds the write lock from its first line, so what it reads stays true until it ends. A
        caller that is cancelled leaves it whole or undone, never half. Raises StateError.
        """
        if self._closed:
            raise StateError("the server is shutting down: its state is closed")
        if self._worker is None:
            self._worker = DatabaseThread("state")
        return await self._worker.run(partial(self._transact, function, time.monotonic() + BUSY))

    async def prepare(self) -> None:
        """Upgrade a database of an older version now, rather than at the first transaction. Any other is not even
        opened. Raises StateError, and Newer for one that only a newer Toolgate can use."""
        version = (
            read_header_version(self.path) if self._worker is None else None
        )  # closing a file ends SQLite's locks on it
        if version is None or version == VERSION:
            return
        if version > VERSION:
            raise self._newer(version)
        await self.transact(lambda _: None)

    def set_flag(self, kind: str, key: str, on: bool) -> None:
        """Leave or take away a marker that `flagged` sees. Call it inside a transaction only.

        A mark that is left over costs a look at the database, one that is missing loses something: so it is
        put up in the transaction that makes it true, before the commit, and taken down in a later one that
        has seen nothing is left (`settle`). Raises StateError.
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
        """Whether the marker is there. Costs a stat, and never opens the database."""
        return self._mark(kind, key).exists()

    async def clear_flag_unless(self, kind: str, key: str, needed: "Callable[[Connection], bool]") -> None:
        """Take the marker down, unless `needed` finds that the database still holds what it stands for."""

        def look(connection: "Connection") -> None:
            if not needed(connection):
                self.set_flag(kind, key, False)

        await self.transact(look)

    def is_empty(self) -> bool:
        """Whether nothing was ever stored. Costs a stat, and never opens the database."""
        return self._worker is None and not self.path.exists()

    def to_state_error(self, error: Exception) -> StateError:
        """What a caller is told whose work in a transaction raised that; the log has it."""
        return error if isinstance(error, StateError) else self._unusable(describe_error(error), error)

    def close(self) -> None:
        """Let what is under way finish, a third of a second at most, and close the file.

        What is not done by then raises StateError: it was promised to nobody. Nothing can be stored any more.
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

        name = hashlib.sha256(key.encode()).hexdigest()[:32]  # a key may hold anything, a file name may not
        return self.folder / "flags" / f"{kind}-{name}"

    def _transact(self, function: "Callable[[Connection], T]", until: float) -> T:
        import sqlite3  # start-up

        from sqlalchemy.exc import DBAPIError

        try:
            with self._begin(until) as transaction:
                return function(transaction.connection)
        except (DBAPIError, sqlite3.Error) as error:  # the second comes from `_prepare`
            raise self.to_state_error(error) from error

    def _begin(self, until: float) -> "RootTransaction":
        """A transaction that holds the write lock, once no other process does: not for long, and not at the end."""
        import sqlite3  # start-up

        from sqlalchemy.exc import DBAPIError

        while True:
            try:
                if self._connection is not None and self._file != self._file_identity():
                    log.warning("%s was removed or replaced: what is there now is used", self.path)
                    self._close()
                if self._connection is None:
                    self._connection = self._open()
                transaction = self._connection.begin()
                if _version(self._connection) == VERSION:
                    return transaction
                transaction.rollback()  # somebody upgraded it since: to open it says what of that
                self._close()
            except (DBAPIError, sqlite3.Error) as error:
                if (
                    self._closed
                    or time.monotonic() > until
                    or error_name(error) not in ("SQLITE_BUSY", "SQLITE_LOCKED")
                ):
                    raise

    def _file_identity(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _open(self) -> "Connection":
        try:
            make_private_folder(self.folder)
            if not self.path.exists():
                self._make()
        except OSError as error:
            raise self._unusable("can't be made", error) from error
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
        if version < 1:  # it is linked into place with its version in it
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
        """Make the database whole under another name, then link it into place.

        So there never is half a database, and of two processes that start at once one wins.
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
            if (left := move_stale_log(self.path)) is not None:
                log.warning("a log of another database was there: it is in %s now", left)
            os.link(draft, self.path)
        except FileExistsError:
            log.debug("another process made %s first", self.path)
        finally:
            for left in self.folder.glob(f"{draft.name}*"):
                left.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._connection is not None:
            disconnect(self._connection)
            self._connection = None

    def _unusable(self, what: str, cause: Exception | None) -> StateError:
        log.error("the state database %s %s%s", self.path, what, f": {cause}" if cause else "")
        return StateError(f"the state database {what}; nothing was changed, and the server's log says more")


def make_private_folder(folder: Path) -> None:
    """Make `folder` for its owner alone. One that is there is left as it is: it may be anything, even
    /tmp."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _fill(connection: "Connection") -> None:
    """Make the tables."""
    from toolgate.server.state import migrate  # start-up; this much of it imports no Alembic

    tables.metadata.create_all(connection)
    migrate.stamp_version(connection)


def _version(connection: "Connection") -> int:
    raw: Any = connection.connection.driver_connection
    return version_of_raw(raw)
