"""The rows of signing keys, sealed as they come. Each function runs inside a transaction. Times are seconds since the
epoch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table


def _table() -> "Table":
    from toolgate.server.state.tables import tables  # start-up

    return tables().oauth.key


def listed(connection: "Connection") -> list[Any]:
    """All rows (kid, sealed, made_at, retired_at), the newest first."""
    of = _table()
    return list(connection.execute(of.select().order_by(of.c.made_at.desc(), of.c.kid)))


def put(connection: "Connection", kid: str, sealed: str, now: float, takes_over: float) -> None:
    """A new key: the last one before retires when this one takes over."""
    of = _table()
    connection.execute(of.update().where(of.c.retired_at.is_(None)).values(retired_at=takes_over))
    connection.execute(of.insert().values(kid=kid, sealed=sealed, made_at=now))


def sweep(connection: "Connection", before: float) -> None:
    """Take away those retired before then."""
    of = _table()
    connection.execute(of.delete().where(of.c.retired_at < before))


def drop(connection: "Connection") -> None:
    """Take all away."""
    connection.execute(_table().delete())
