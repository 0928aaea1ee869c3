"""SQLite as the state needs it: how a database is opened, which version it is of, and what its errors are called. Knows
nothing of what is stored."""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.tools import ToolError

if TYPE_CHECKING:
    import sqlite3

    from sqlalchemy import Connection, Engine

STEP = 0.02  # seconds spent waiting in SQLite, which nothing interrupts, at a time
LOOK = 2.0  # seconds to wait for another process's transactions where there is nothing to interrupt
HEADER = 64  # bytes of a database that tell what it is: https://www.sqlite.org/fileformat2.html#the_database_header
MAGIC = b"SQLite format 3\0"


class StateError(ToolError):
    """The state database can't be used as it is. Nothing was changed; the log has the path and the cause."""


class NewerStateError(StateError):
    """The state is of a newer version than this program: that one has to be used."""


def connect(path: Path, *, foreign_keys: bool = True) -> "Connection":
    """A connection whose transactions hold the write lock from their first line. Without `foreign_keys` nothing is
    taken away with what it belongs to: where a table is made anew, its rows have to outlive the old one."""
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
    """The version of the tables; 0 where none was ever written."""
    return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())


def version_of_raw(raw: "sqlite3.Connection") -> int:
    """The same by the driver alone, for microseconds: in no transaction but one that is there."""
    return int(raw.execute("PRAGMA user_version").fetchone()[0])


def read_header_version(path: Path) -> int | None:
    """The version that the head of the file tells, for the price of reading it: one that was written since may wait
    beside it, and is newer. None where there is no database."""
    try:
        with path.open("rb") as file:
            head = file.read(HEADER)
    except OSError:
        return None
    return int.from_bytes(head[60:64]) if head.startswith(MAGIC) and len(head) == HEADER else None


def check_database(path: Path) -> int:
    """The version of the database at `path`, whose pages are in order. Reads alone: nothing is upgraded, whoever made
    it, and no file made beside it. Raises StateError."""
    import sqlite3  # start-up

    try:
        with contextlib.closing(_read_only(path)) as raw:
            (found,) = raw.execute("PRAGMA quick_check(1)").fetchone()
            version = version_of_raw(raw)
    except sqlite3.Error as error:
        raise StateError(f"the state database {describe_error(error)}") from error
    if found != "ok":
        raise StateError(f"the state database {CAUSES['SQLITE_CORRUPT']}")
    return version


def checkpoint(path: Path) -> None:
    """Have all of a database that nobody else uses in its one file, with no log beside it. One that is damaged stays as
    it is."""
    import sqlite3  # start-up

    if not path.is_file():
        return
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path, timeout=LOOK)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def move_stale_log(path: Path) -> Path | None:
    """Move the log of a database that is gone out of the way of the one to be made at `path`, into which SQLite would
    read it. Gives where to, if there was one. Raises OSError.

    The lock is on the log: of two who make the database at once, the second finds that it is gone, or is the other's.
    """
    left = path.with_name(f"{path.name}-wal")
    aside = path.with_name(f"{left.name}.left-{os.urandom(4).hex()}")
    try:
        held = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX)  # for as long as it takes another to do the same
        if path.exists() or not _is_same_file(left, held):
            return None
        left.rename(aside)
        path.with_name(f"{path.name}-shm").unlink(missing_ok=True)  # its index
    finally:
        os.close(held)
    return aside


def _is_same_file(path: Path, held: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(held))
    except FileNotFoundError:
        return False


def _read_only(path: Path) -> "sqlite3.Connection":
    import sqlite3  # start-up

    used = path.with_name(f"{path.name}-wal").exists()  # where nobody has it open, SQLite would leave this one behind
    place = f"{path.absolute().as_uri()}?{'mode=ro' if used else 'immutable=1'}"
    return sqlite3.connect(place, timeout=LOOK, uri=True)


def _prepare(raw: object, record: object) -> None:
    import sqlite3  # start-up

    _prepare_bare(raw, record)
    assert isinstance(raw, sqlite3.Connection)
    raw.execute("PRAGMA foreign_keys = ON")


def _prepare_bare(raw: object, _record: object) -> None:
    import sqlite3  # start-up

    assert isinstance(raw, sqlite3.Connection)
    raw.isolation_level = None  # the driver's own idea of when to begin is off; `_begin` does
    raw.execute("PRAGMA journal_mode = WAL")  # kept in the file: of effect when it is made
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


def describe_error(error: BaseException) -> str:
    return CAUSES.get(error_name(error), "refused the work")


def error_name(error: BaseException) -> str:
    """What SQLite calls it; "" for what is none of its errors."""
    name = str(getattr(getattr(error, "orig", error), "sqlite_errorname", ""))
    return "_".join(name.split("_")[:2])  # SQLITE_IOERR_WRITE is a kind of SQLITE_IOERR
