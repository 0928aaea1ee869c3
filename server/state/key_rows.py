"""The rows of signing keys, sealed as they come. Each function runs inside a transaction. Times are seconds since the
epoch.
"""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolgate.server.state import tables

WITHIN = 2.0  # seconds to wait for another process that writes

if TYPE_CHECKING:
    from sqlalchemy import Connection


def list_keys(connection: "Connection") -> list[Any]:
    """All rows (kid, sealed, made_at, retired_at), the newest first."""
    of = tables.signing_key
    return list(connection.execute(of.select().order_by(of.c.made_at.desc(), of.c.kid)))


def add_key(connection: "Connection", kid: str, sealed: str, now: float, takes_over: float) -> None:
    """A new key: the last one before retires when this one takes over."""
    of = tables.signing_key
    connection.execute(of.update().where(of.c.retired_at.is_(None)).values(retired_at=takes_over))
    connection.execute(of.insert().values(kid=kid, sealed=sealed, made_at=now))


def remove_retired_keys(connection: "Connection", before: float) -> None:
    """Take away those retired before then."""
    of = tables.signing_key
    connection.execute(of.delete().where(of.c.retired_at < before))


def remove_all_keys(connection: "Connection") -> None:
    """Take all away."""
    connection.execute(tables.signing_key.delete())


def read_newest_key(path: Path) -> tuple[str, str, float] | None:
    """Of the key made last in the database at `path`: kid, sealed, made_at. Reads alone, as `store.looked_at` does;
    None where there is none, or no table of them. Raises StateError."""
    import sqlite3  # start-up

    from toolgate.server.state.store import StateError

    if not path.exists():
        return None
    used = path.with_name(f"{path.name}-wal").exists()
    place = f"{path.absolute().as_uri()}?{'mode=ro' if used else 'immutable=1'}"
    try:
        with contextlib.closing(sqlite3.connect(place, timeout=WITHIN, uri=True)) as raw:
            if raw.execute("SELECT 1 FROM sqlite_master WHERE name = 'oauth_key'").fetchone() is None:
                return None
            row = raw.execute("SELECT kid, sealed, made_at FROM oauth_key ORDER BY made_at DESC LIMIT 1").fetchone()
    except sqlite3.Error as error:
        raise StateError(f"the state database can't be read: {error}") from error
    return None if row is None else (str(row[0]), str(row[1]), float(row[2]))
