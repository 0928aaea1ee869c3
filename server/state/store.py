"""The state database: one SQLite file, one thread, one transaction at a time. Knows nothing of what is stored
in it.

    answered = await store.transact(function)     # function(connection) runs whole or not at all

What `transact` has returned survives `kill -9`, and two processes may use one file. SQLAlchemy costs 370 ms
to import, so nothing here imports it before the first transaction; a flag answers the commonest question
without one.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from toolgate.server.state.tables import tables
from toolgate.server.state.worker import Worker
from toolgate.tools import ToolError

if TYPE_CHECKING:
    from sqlalchemy import Connection as Connection  # again by this name: the rest of the server sees it here only
    from sqlalchemy import Engine, RootTransaction

T = TypeVar("T")

VERSION = 4  # of the tables, in PRAGMA user_version; a change of theirs adds one, and a way up from the last
BUSY = 2.0  # seconds to wait for another process's transactions, each of which takes milliseconds
STEP = 0.02  # seconds of that spent in SQLite, which nothing interrupts, at a time
CLOSE_WITHIN = 0.3  # seconds for what is under way when the store is closed

log = logging.getLogger(__name__)


class StateError(ToolError):
    """The state database can't be used as it is. Nothing was changed; the log has the path and the cause."""


class Store:
    """`state.db` and `flags/` in `folder`, which is made, for its owner alone, when it is first needed. Without
    `upgrades` a database of an older version is refused: the older Toolgate could not use it any more."""

    def __init__(self, folder: Path, *, upgrades: bool = True) -> None:
        self.folder = folder
        self.path = folder / "state.db"
        self._upgrades = upgrades
        self._worker: Worker | None = None
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
            self._worker = Worker("state")
        return await self._worker.do(partial(self._transact, function, time.monotonic() + BUSY))

    def flag(self, kind: str, key: str, on: bool) -> None:
        """Leave or take away a marker that `flagged` sees. Call it inside a transaction only.

        A mark that is left over costs a look at the database, one that is missing loses something: so it is
        put up in the transaction that makes it true, before the commit, and taken down in a later one that
        has seen nothing is left (`settle`). Raises StateError.
        """
        mark = self._mark(kind, key)
        try:
            if on:
                private(mark.parent)
                mark.touch(0o600)
            else:
                mark.unlink(missing_ok=True)
        except OSError as error:
            raise self._unusable("can't be written", error) from error

    def flagged(self, kind: str, key: str) -> bool:
        """Whether the marker is there. Costs a stat, and never opens the database."""
        return self._mark(kind, key).exists()

    async def settle(self, kind: str, key: str, needed: "Callable[[Connection], bool]") -> None:
        """Take the marker down, unless `needed` finds that the database still holds what it stands for."""

        def look(connection: "Connection") -> None:
            if not needed(connection):
                self.flag(kind, key, False)

        await self.transact(look)

    def is_empty(self) -> bool:
        """Whether nothing was ever stored. Costs a stat, and never opens the database."""
        return self._worker is None and not self.path.exists()

    def close(self) -> None:
        """Let what is under way finish, a third of a second at most, and close the file.

        What is not done by then raises StateError: it was promised to nobody. Nothing can be stored any more.
        """
        self._closed = True
        if self._worker is not None:
            late = StateError("the server shut down before this was stored")
            self._worker.end(self._close, CLOSE_WITHIN, late)
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
            with self._begun(until) as transaction:
                return function(transaction.connection)
        except (DBAPIError, sqlite3.Error) as error:  # the second comes from `_prepare`
            raise self._unusable(_cause(error), error) from error

    def _begun(self, until: float) -> "RootTransaction":
        """A transaction that holds the write lock, once no other process does: not for long, and not at the end."""
        import sqlite3  # start-up

        from sqlalchemy.exc import DBAPIError

        while True:
            try:
                if self._connection is not None and self._file != self._found():
                    log.warning("%s was removed or replaced: what is there now is used", self.path)
                    self._close()
                if self._connection is None:
                    self._connection = self._open()
                return self._connection.begin()
            except (DBAPIError, sqlite3.Error) as error:
                if self._closed or time.monotonic() > until or _name(error) not in ("SQLITE_BUSY", "SQLITE_LOCKED"):
                    raise

    def _found(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _open(self) -> "Connection":
        try:
            private(self.folder)
            if not self.path.exists():
                self._make()
        except OSError as error:
            raise self._unusable("can't be made", error) from error
        self._file = self._found()
        connection = _connect(self.path)
        try:
            with connection.begin():
                version = int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
                self._check(version)
                if version < VERSION:  # what there was stays as it is: so far only tables were added
                    _fill(connection)
        except BaseException:
            _disconnect(connection)
            raise
        return connection

    def _check(self, version: int) -> None:
        if version > VERSION:
            raise self._unusable(f"was made by a newer Toolgate (version {version}, this one knows {VERSION})", None)
        if version < 1:  # it is linked into place with its version in it
            raise self._unusable("was not made by Toolgate, or is damaged", None)
        if version < VERSION and not self._upgrades:
            upgrade = f"serving upgrades it to {VERSION}: copy state.db and keys/ before"
            raise self._unusable(f"is of version {version}, and {upgrade}", None)

    def _make(self) -> None:
        """Make the database whole under another name, then link it into place.

        So there never is half a database, and of two processes that start at once one wins.
        """
        draft = self.folder / f".state-{os.urandom(8).hex()}.db"
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            connection = _connect(draft)
            try:
                with connection.begin():
                    _fill(connection)
            finally:
                _disconnect(connection)
            os.link(draft, self.path)
        except FileExistsError:
            log.debug("another process made %s first", self.path)
        finally:
            for left in self.folder.glob(f"{draft.name}*"):
                left.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._connection is not None:
            _disconnect(self._connection)
            self._connection = None

    def _unusable(self, what: str, cause: Exception | None) -> StateError:
        log.error("the state database %s %s%s", self.path, what, f": {cause}" if cause else "")
        return StateError(f"the state database {what}; nothing was changed, and the server's log says more")


def looked_at(path: Path) -> int:
    """The version of the database at `path`, whose pages are in order. Reads alone: nothing is upgraded, whoever made
    it, and no file made beside it. Raises StateError."""
    import sqlite3  # start-up

    used = path.with_name(f"{path.name}-wal").exists()  # where nobody has it open, SQLite would leave this one behind
    place = f"{path.absolute().as_uri()}?{'mode=ro' if used else 'immutable=1'}"
    try:
        with contextlib.closing(sqlite3.connect(place, BUSY, uri=True)) as raw:
            (found,) = raw.execute("PRAGMA quick_check(1)").fetchone()
            (version,) = raw.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error as error:
        raise StateError(f"the state database {_cause(error)}") from error
    if found != "ok":
        raise StateError(f"the state database {CAUSES['SQLITE_CORRUPT']}")
    return int(version)


def private(folder: Path) -> None:
    """Make `folder` for its owner alone. One that is there is left as it is: it may be anything, even
    /tmp."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _fill(connection: "Connection") -> None:
    """Make the tables that are missing."""
    tables().metadata.create_all(connection)
    connection.exec_driver_sql(f"PRAGMA user_version = {VERSION}")


def _connect(path: Path) -> "Connection":
    from sqlalchemy import URL, create_engine, event  # start-up
    from sqlalchemy.pool import StaticPool

    url = URL.create("sqlite", database=str(path))
    engine = create_engine(url, poolclass=StaticPool, connect_args={"timeout": STEP})
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine.connect()


def _disconnect(connection: "Connection") -> None:
    engine: Engine = connection.engine
    connection.close()
    engine.dispose()


def _prepare(raw: object, _record: object) -> None:
    import sqlite3  # start-up

    assert isinstance(raw, sqlite3.Connection)
    raw.isolation_level = None  # the driver's own idea of when to begin is off; `_begin` does
    raw.execute("PRAGMA journal_mode = WAL")  # kept in the file: of effect when it is made
    raw.execute("PRAGMA foreign_keys = ON")
    raw.execute("PRAGMA synchronous = NORMAL")  # with WAL enough for the death of a process, and no fsync a commit


def _begin(connection: "Connection") -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


# What the driver calls it → what to tell. SQLITE_… at https://www.sqlite.org/rescode.html
CAUSES = {
    "SQLITE_BUSY": "is held by another process: try again",
    "SQLITE_LOCKED": "is held by another process: try again",
    "SQLITE_FULL": "can't grow, the disk is full: free some space",
    "SQLITE_IOERR": "can't be written, the disk fails or is full",
    "SQLITE_READONLY": "can't be written, it is read-only",
    "SQLITE_CANTOPEN": "can't be opened",
    "SQLITE_CORRUPT": "is damaged: move it away, or put back a copy",
    "SQLITE_NOTADB": "is damaged: move it away, or put back a copy",
}


def _cause(error: Exception) -> str:
    return CAUSES.get(_name(error), "refused the work")


def _name(error: Exception) -> str:
    name = str(getattr(getattr(error, "orig", error), "sqlite_errorname", ""))
    return "_".join(name.split("_")[:2])  # SQLITE_IOERR_WRITE is a kind of SQLITE_IOERR
