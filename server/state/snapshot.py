"""A copy of the state database, made while servers use it. Knows nothing of what is stored, or what it is for."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from toolgate.server.state.sqlite import StateError, describe_error, version_of_raw

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

BUSY = 10.0  # seconds to wait for the transactions of others


def copy_database(database: Path, to: Path) -> None:
    """Make the new file `to`, its owner's alone and on disk, out of what is committed now. Raises sqlite3.Error and
    OSError, and then there is no file."""
    import sqlite3  # start-up

    with contextlib.closing(sqlite3.connect(database, timeout=BUSY)) as source:
        _copy(source, to)


def copy_with(database: Path, to: Path, moment: Callable[[], T]) -> tuple[int, T]:
    """As `copy`. Gives the version of the tables, and what `moment` finds in the instant that the copy is of, when
    nobody can write: it has to be quick. Raises StateError and OSError."""
    import sqlite3  # start-up

    try:
        with contextlib.ExitStack() as held:
            writer, source = (
                held.enter_context(contextlib.closing(sqlite3.connect(database, timeout=BUSY, isolation_level=None)))
                for _ in range(2)
            )
            writer.execute("BEGIN IMMEDIATE")
            source.execute("BEGIN")
            version = version_of_raw(source)  # from this first read on, it sees what is there now
            found = moment()
            writer.execute("ROLLBACK")
            _copy(source, to)
    except sqlite3.Error as error:
        raise StateError(f"the state database {describe_error(error)}") from error
    return version, found


def _copy(source: "sqlite3.Connection", to: Path) -> None:
    import sqlite3  # start-up

    os.close(os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
    try:
        with contextlib.closing(sqlite3.connect(to)) as target:
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")  # one file, whoever opens it
        with to.open("rb") as file:
            os.fsync(file.fileno())
    except BaseException:
        for left in to.parent.glob(f"{to.name}*"):
            left.unlink(missing_ok=True)
        raise
