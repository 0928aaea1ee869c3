"""Read and write the rows of signing keys, which arrive sealed.

Each function but the last runs inside a transaction. Times are seconds since the epoch.
"""

import contextlib
from pathlib import Path
from typing import Any

from toolgate.server.base.errors import StateError
from toolgate.server.state import tables
from toolgate.server.state.sqlite.database import open_read_only, require_files


def list_keys(connection: "tables.Connection") -> list[Any]:
    """Return all rows (kid, sealed, made_at, retired_at), the newest first."""
    table = tables.signing_key
    return list(connection.execute(table.select().order_by(table.c.made_at.desc(), table.c.kid)))


def add_key(connection: "tables.Connection", kid: str, sealed: str, now: float, takes_over: float) -> None:
    """Add a key; the one before retires when this one takes over."""
    table = tables.signing_key
    connection.execute(table.update().where(table.c.retired_at.is_(None)).values(retired_at=takes_over))
    connection.execute(table.insert().values(kid=kid, sealed=sealed, made_at=now))


def remove_retired_keys(connection: "tables.Connection", before: float) -> None:
    """Remove the keys that retired before then."""
    connection.execute(tables.signing_key.delete().where(tables.signing_key.c.retired_at < before))


def remove_all_keys(connection: "tables.Connection") -> None:
    """Remove all keys."""
    connection.execute(tables.signing_key.delete())


def read_newest_key(path: Path) -> tuple[str, str, float] | None:
    """Return kid, sealed and made_at of the newest key in the database at `path`, or None. Changes nothing there.

    Raises StateError.
    """
    import sqlite3  # start-up

    if not path.exists():
        return None
    require_files(path)
    try:
        with contextlib.closing(open_read_only(path)) as raw:
            if raw.execute("SELECT 1 FROM sqlite_master WHERE name = 'oauth_key'").fetchone() is None:
                return None
            row = raw.execute("SELECT kid, sealed, made_at FROM oauth_key ORDER BY made_at DESC LIMIT 1").fetchone()
    except sqlite3.Error as error:
        raise StateError(f"the state database can't be read: {error}") from error
    return None if row is None else (str(row[0]), str(row[1]), float(row[2]))
