"""Open SQLite databases, read their versions, and describe their errors."""

import contextlib
import fcntl
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.server.base.errors import StateError
from toolgate.tools.api.regular_file import open_regular

if TYPE_CHECKING:
    import sqlite3

    from sqlalchemy import Connection, Engine

STEP = 0.02  # seconds to wait in SQLite at a time, since nothing interrupts that
LOOK = 2.0  # seconds to wait for another process's transactions where nothing can interrupt
REMEDY = "move it away, or restore state.db and keys/ from a backup"
HEADER = 64  # bytes of the header: https://www.sqlite.org/fileformat2.html#the_database_header
MAGIC = b"SQLite format 3\0"


def connect(path: Path, *, foreign_keys: bool = True) -> "Connection":
    """Return a connection that takes the write lock at the first statement of each transaction.

    Without `foreign_keys` no delete cascades: a migration copies a table, and rows that refer to the old one must stay.
    """
    from sqlalchemy import URL, create_engine, event  # start-up
    from sqlalchemy.pool import StaticPool

    url = URL.create("sqlite", database=str(path))
    engine = create_engine(url, poolclass=StaticPool, connect_args={"timeout": STEP})
    event.listen(engine, "connect", _prepare if foreign_keys else _prepare_bare)
    event.listen(engine, "begin", _begin)
    return engine.connect()


def disconnect(connection: "Connection") -> None:
    engine: Engine = connection.engine
    connection.close()
    engine.dispose()


def version_of(connection: "Connection") -> int:
    """Return the version of the tables; 0 where none was written."""
    return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())


def version_of_raw(raw: "sqlite3.Connection") -> int:
    """Return the same by the driver alone, in microseconds, without beginning a transaction."""
    return int(raw.execute("PRAGMA user_version").fetchone()[0])


def compatible_since_of_raw(raw: "sqlite3.Connection") -> int:
    """Return the first version that can use the tables of a newer one; their own where they don't say."""
    version = version_of_raw(raw)
    row = raw.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema_version'").fetchone()
    row = row and raw.execute("SELECT compatible_since FROM schema_version WHERE version = ?", (version,)).fetchone()
    return int(row[0]) if row else version


def read_header_version(path: Path) -> int | None:
    """Return the version in the file's header, or None without a database. The log beside it may have a newer one."""
    try:
        with open(open_regular(path, os.O_RDONLY, follow=True), "rb") as file:
            head = file.read(HEADER)
    except OSError:
        return None
    return int.from_bytes(head[60:64]) if head.startswith(MAGIC) and len(head) == HEADER else None


def require_files(path: Path) -> None:
    """Raise StateError where something else is in the place of the database, or of the files beside it: SQLite would
    wait for a FIFO, or answer with an error that says nothing."""
    for place in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        try:
            is_file = stat.S_ISREG(place.stat().st_mode)  # closing a file would end SQLite's locks on it
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StateError(f"the state database can't be read: {place}: {error.strerror}: {REMEDY}") from error
        if not is_file:
            raise StateError(f"the state database can't be read: {place} is not a file: {REMEDY}")
        if not os.access(place, os.R_OK | os.W_OK):
            raise StateError(f"the state database can't be read: {place}: no permission: chmod 600 it")


def check_database(path: Path) -> tuple[int, int]:
    """Return the version of the database at `path`, and the first that can use it, after checking its pages.

    Changes nothing. Raises StateError.
    """
    import sqlite3  # start-up

    require_files(path)
    try:
        with contextlib.closing(open_read_only(path)) as raw:
            (verdict,) = raw.execute("PRAGMA quick_check(1)").fetchone()
            versions = version_of_raw(raw), compatible_since_of_raw(raw)
    except sqlite3.Error as error:
        raise StateError(f"the state database {describe_error(error)}") from error
    if verdict != "ok":
        raise StateError(f"the state database {CAUSES['SQLITE_CORRUPT']}")
    return versions


def checkpoint(path: Path) -> None:
    """Move the log of a database that no other process uses into its file. A damaged one stays unchanged."""
    import sqlite3  # start-up

    if not path.is_file():
        return
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path, timeout=LOOK)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def move_stale_log(path: Path) -> Path | None:
    """Move aside the log of a missing database, which SQLite would read into the one to be created at `path`.

    Return its new path, if there was one. Raises OSError. The lock is on the log: of two processes that create the
    database at once, the second finds that it is gone, or is the other's.
    """
    log_file = path.with_name(f"{path.name}-wal")
    aside = path.with_name(f"{log_file.name}.left-{os.urandom(4).hex()}")
    try:
        descriptor = open_regular(log_file, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # for as long as another process does the same
        if path.exists() or not _is_same_file(log_file, descriptor):
            return None
        log_file.rename(aside)
        path.with_name(f"{path.name}-shm").unlink(missing_ok=True)  # the index of the log
    finally:
        os.close(descriptor)
    return aside


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def open_read_only(path: Path) -> "sqlite3.Connection":
    """Return a connection that changes nothing and leaves no file beside the database."""
    import sqlite3  # start-up

    # without a log SQLite would create one, and leave it behind
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    return sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", timeout=LOOK, uri=True)


def _prepare(raw: object, record: object) -> None:
    import sqlite3  # start-up

    _prepare_bare(raw, record)
    assert isinstance(raw, sqlite3.Connection)
    raw.execute("PRAGMA foreign_keys = ON")


def _prepare_bare(raw: object, _record: object) -> None:
    import sqlite3  # start-up

    assert isinstance(raw, sqlite3.Connection)
    raw.isolation_level = None  # the driver begins no transaction of its own; `_begin` does
    raw.execute("PRAGMA journal_mode = WAL")  # stored in the file: takes effect when it is created
    raw.execute("PRAGMA synchronous = NORMAL")  # with WAL it survives a killed process, without an fsync at each commit


def _begin(connection: "Connection") -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


# The driver's name → the text. https://www.sqlite.org/rescode.html
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


def describe_error(error: BaseException) -> str:
    """Return what went wrong, as the rest of a sentence about the database."""
    return CAUSES.get(error_name(error), "refused the work")


def error_name(error: BaseException) -> str:
    """Return SQLite's name of the error; "" for other errors."""
    name = str(getattr(getattr(error, "orig", error), "sqlite_errorname", ""))
    return "_".join(name.split("_")[:2])  # SQLITE_IOERR_WRITE is a kind of SQLITE_IOERR
