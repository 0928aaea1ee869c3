"""Copy the state database while servers use it."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from toolgate.server.base.errors import StateError
from toolgate.server.state.sqlite.database import describe_error, require_files, version_of_raw

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

BUSY = 10.0  # seconds to wait for the transactions of others


def copy_database(database: Path, to: Path) -> None:
    """Write what is committed now to the new private file `to`. Raises sqlite3.Error and OSError, without a file."""
    import sqlite3  # start-up

    with contextlib.closing(sqlite3.connect(database, timeout=BUSY)) as source:
        _copy(source, to)


def copy_with(database: Path, to: Path, moment: Callable[[], T]) -> tuple[int, T]:
    """Copy the database, and return the version of its tables and the result of `moment`.

    `moment` runs in the instant of the copy, while no process can write, so it must be quick.
    Raises StateError and OSError.
    """
    import sqlite3  # start-up

    require_files(database)
    try:
        with contextlib.ExitStack() as stack:
            writer, source = (
                stack.enter_context(contextlib.closing(sqlite3.connect(database, timeout=BUSY, isolation_level=None)))
                for _ in range(2)
            )
            writer.execute("BEGIN IMMEDIATE")
            source.execute("BEGIN")
            version = version_of_raw(source)  # the first read fixes what it sees
            result = moment()
            writer.execute("ROLLBACK")
            _copy(source, to)
    except sqlite3.Error as error:
        raise StateError(f"the state database {describe_error(error)}") from error
    return version, result


def _copy(source: "sqlite3.Connection", to: Path) -> None:
    import sqlite3  # start-up

    os.close(os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
    try:
        with contextlib.closing(sqlite3.connect(to)) as target:
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")  # one file, without a log
        with to.open("rb") as file:
            os.fsync(file.fileno())
    except BaseException:
        for path in to.parent.glob(f"{to.name}*"):
            path.unlink(missing_ok=True)
        raise
