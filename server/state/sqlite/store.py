"""Run transactions on an SQLite file: in one thread, one at a time.

A finished transaction survives `kill -9`, and several processes may use one file. SQLAlchemy costs 370 ms to import, so
nothing imports it before the first transaction. A flag answers the most common question without one.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from toolgate.server.base.errors import StateError
from toolgate.server.base.limits.state_budget import current_budget
from toolgate.server.state.commit_gate import UNCHANGED, CommitGate
from toolgate.server.state.errors import newer_state_error, older_state_error, state_silent_error, upgrade_due_error
from toolgate.server.state.live_processes import ProcessRegistry
from toolgate.server.state.sqlite.database import (
    compatible_since_of_raw,
    connect,
    describe_error,
    disconnect,
    error_name,
    move_stale_log,
    read_header_version,
    require_files,
    version_of_raw,
)
from toolgate.server.state.sqlite.db_thread import DatabaseThread
from toolgate.server.state.store import Subject, make_private_folder
from toolgate.server.state.tables import OLDEST, VERSION
from toolgate.tools.api.regular_file import remove_entry

if TYPE_CHECKING:
    from sqlalchemy import Connection, RootTransaction

LOCKED = ("SQLITE_BUSY", "SQLITE_LOCKED")
LIBRARY = ("sqlite3", "sqlalchemy.dialects.sqlite", "toolgate.server.state.schema")  # what transactions import
T = TypeVar("T")

BUSY = 2.0  # seconds to wait for another process's transactions, each of which takes milliseconds
CLOSE_WITHIN = 0.3  # seconds for running transactions when the store is closed

log = logging.getLogger(__name__)


class SqliteStore:
    """The database `state.db` and the markers in `flags/` of `folder`, which is created when it is first needed.

    Without `upgrades` a database of an older version is refused: after an upgrade the older Toolgate could not use it.
    """

    now = staticmethod(time.time)

    def __init__(self, folder: Path, *, upgrades: bool = True) -> None:
        self.folder = folder
        self.path = folder / "state.db"
        self._upgrades = upgrades
        self._worker: DatabaseThread | None = None
        self._loading: asyncio.Future[None] | None = None
        self._connection: Connection | None = None
        self._file: tuple[int, int] | None = None  # device and inode of what is open
        self._newer: int | None = None  # version of another Toolgate's tables that this one can use
        self._closed = False

    @property
    def place(self) -> str:
        return str(self.folder)

    async def read(self, function: "Callable[[Connection], T]") -> T:
        return await self._run(function, None)

    async def transact(
        self, function: "Callable[[Connection], T]", *, alone: Subject | tuple[Subject, str] | None = "everything"
    ) -> T:
        """Run `function` in the store's thread. SQLite has one writer, so each transaction is alone, `alone` or not,
        from its first statement. A cancelled caller's transaction runs to its end once it has begun.
        """
        del alone
        return await self._run(function, CommitGate())

    def try_write(self, write: "Callable[[Connection], None]", connection: "Connection") -> Exception | None:
        raw: Any = connection.connection.driver_connection  # SQLAlchemy's own savepoints cost more than a write
        raw.execute("SAVEPOINT one")
        try:
            write(connection)
        except Exception as error:
            if not raw.in_transaction:  # a full disk may have ended it: the writes before are lost too
                raise
            raw.execute("ROLLBACK TO one")
            return self._to_state_error(error)
        finally:
            if raw.in_transaction:
                raw.execute("RELEASE one")
        return None

    async def prepare(self) -> None:
        """Upgrade a database of an older version. Opens no other one."""
        # only while SQLite has it not open: closing a file ends SQLite's locks on it
        version = read_header_version(self.path) if self._worker is None else None
        if self._worker is None:
            require_files(self.path)
        if version not in (None, VERSION):
            await self.read(lambda _: None)

    def set_flag(self, kind: str, key: str, on: bool) -> None:
        mark = self._mark(kind, key)
        try:
            if on:
                make_private_folder(mark.parent)
                if not os.path.lexists(mark):
                    mark.touch(0o600)
            else:
                remove_entry(mark)
        except OSError as error:
            raise self._unusable("can't be written", error) from error

    def has_flag(self, kind: str, key: str) -> bool:
        """Return whether the marker is set. Costs a stat."""
        return os.path.lexists(self._mark(kind, key))

    async def clear_flag_unless(
        self,
        kind: str,
        key: str,
        needed: "Callable[[Connection], bool]",
        *,
        alone: Subject | tuple[Subject, str] = "everything",
    ) -> None:
        def settle(connection: "Connection") -> None:
            if not needed(connection):
                self.set_flag(kind, key, False)

        await self.transact(settle, alone=alone)

    def is_empty(self) -> bool:
        """Return whether nothing was ever stored. Costs a stat."""
        return self._worker is None and not self.path.exists()

    def close(self) -> None:
        """Let running transactions finish, for a third of a second at most, and close the file for good.

        The others raise StateError.
        """
        self._closed = True
        if self._worker is not None:
            late = StateError("the server shut down before this was stored")
            self._worker.close(self._close, CLOSE_WITHIN, late)
            self._worker = None

    def open_processes(self) -> ProcessRegistry:
        return ProcessRegistry(self.folder / "processes")

    async def aclose(self) -> None:
        self.close()

    async def _run(self, function: "Callable[[Connection], T]", gate: CommitGate | None) -> T:
        """Run a transaction in the thread, a read without a `gate`. A call waits as long as its budget allows.

        The thread may be in a system call that does not return, as on a disk that hangs: only its caller is released.
        """
        worker = await self._start_worker()
        budget = current_budget()
        began = time.monotonic()
        if budget is None:
            return await worker.run(partial(self._transact, function, gate, began + BUSY))
        seconds = budget.remaining()
        work = worker.run(partial(self._transact, function, gate, began + min(BUSY, seconds)))
        timer = asyncio.get_running_loop().call_later(seconds, self._give_up, work, gate)
        work.add_done_callback(lambda _: timer.cancel())
        try:
            return await work
        finally:
            budget.spend(began)

    async def _start_worker(self) -> DatabaseThread:
        """Return the thread, once it has imported what transactions need. That is no wait for the state: a new
        installation may have to compile it first."""
        if self._worker is None and not self._closed:
            self._worker = DatabaseThread("state")
            self._loading = self._worker.run(_load_library)
            self._loading.add_done_callback(lambda loaded: loaded.cancelled() or loaded.exception())
        if self._loading is not None and not self._loading.done():
            await asyncio.wait([self._loading])
        if self._worker is None or self._closed:
            raise StateError("the server is shutting down: its state is closed")
        return self._worker

    def _give_up(self, work: "asyncio.Future[Any]", gate: CommitGate | None) -> None:
        if not work.done():
            outcome = UNCHANGED if gate is None else gate.abandon()
            log.error("the state database %s did not answer in time; %s", self.path, outcome)
            work.set_exception(state_silent_error(outcome))
            work.exception()  # its caller may have been cancelled, and nobody else looks at it

    def _mark(self, kind: str, key: str) -> Path:
        return self.folder / "flags" / flag_file(kind, key)

    def _transact(self, function: "Callable[[Connection], T]", gate: CommitGate | None, until: float) -> T:
        import sqlite3  # start-up

        from sqlalchemy.exc import DBAPIError

        try:
            with self._begin(until) as transaction:
                result = function(transaction.connection)
                if gate is not None:
                    gate.enter_commit()
                return result
        except (DBAPIError, sqlite3.Error, UnicodeEncodeError) as error:  # the driver raises the others, too
            raise self._to_state_error(error) from error

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
                if _version(self._connection) in (VERSION, self._newer):
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
            self._check(connection, version)
            if version < VERSION:
                disconnect(connection)
                self._upgrade()
                connection = connect(self.path)
        except BaseException:
            disconnect(connection)
            raise
        return connection

    def _upgrade(self) -> None:
        from toolgate.server.state.sqlite import upgrade  # start-up, and then it imports Alembic

        try:
            upgrade.upgrade_database(self.path)
        except OSError as error:
            raise self._unusable("can't be upgraded", error) from error

    def _check(self, connection: "Connection", version: int) -> None:
        if version > VERSION:
            self._newer = self._check_newer(connection, version)
        if version < 1:  # it is linked into place with its version set
            raise self._unusable("was not made by Toolgate, or is damaged", None)
        if version < OLDEST:
            log.error(
                "the state database %s is of version %d, and those from %d on are upgraded", self.path, version, OLDEST
            )
            raise older_state_error(version, "--state")
        if version < VERSION and not self._upgrades:
            raise upgrade_due_error(version, VERSION)

    def _check_newer(self, connection: "Connection", version: int) -> int:
        """Return the version if this Toolgate can use its tables. Raises StateVersionError."""
        raw: Any = connection.connection.driver_connection
        if compatible_since_of_raw(raw) > VERSION:
            log.error("the state database %s is of version %d, this Toolgate knows %d", self.path, version, VERSION)
            raise newer_state_error(version, "--state")
        return version

    def _make(self) -> None:
        """Create the database under another name, then link it into place.

        So it is never incomplete, and of two processes that start at once one wins.
        """
        from toolgate.server.state import migrate  # start-up; this much of it imports no Alembic

        draft = self.folder / f".state-{os.urandom(8).hex()}.db"
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            connection = connect(draft)
            try:
                with connection.begin():
                    migrate.create_tables(connection)
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

    def _to_state_error(self, error: Exception) -> StateError:
        """Return the error for the caller of a transaction that raised `error`, which is logged."""
        return error if isinstance(error, StateError) else self._unusable(describe_error(error), error)

    def _unusable(self, what: str, cause: Exception | None) -> StateError:
        reason = getattr(cause, "orig", cause)  # SQLAlchemy adds lines and a link of its own
        log.error("the state database %s %s%s", self.path, what, f": {reason}" if reason else "")
        return StateError(f"the state database {what}; nothing was changed, and the server's log says more")


def _load_library() -> None:
    """Import what the first transaction needs. In the store's thread."""
    for name in LIBRARY:
        import_module(name)


def flag_file(kind: str, key: str) -> str:
    """Return the name of the file of a flag."""
    if not key:
        return kind
    import hashlib  # start-up

    name = hashlib.sha256(key.encode()).hexdigest()[:32]  # a key may have any characters, a file name may not
    return f"{kind}-{name}"


def _version(connection: "Connection") -> int:
    raw: Any = connection.connection.driver_connection
    return version_of_raw(raw)
