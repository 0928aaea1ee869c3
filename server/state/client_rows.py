"""The rows of OAuth clients: those registered dynamically, metadata documents fetched lately, and those the operator
added. Each function runs inside a transaction. Times are seconds since the epoch.
"""

from typing import TYPE_CHECKING, Any

from toolgate.server.state import tables

if TYPE_CHECKING:
    from sqlalchemy import Connection

UNAPPROVED_LIFETIME = 7 * 86_400.0  # seconds after which a client nobody ever approved goes
CONFIGURED = "configured"  # the kind of those the operator added
UNUSED_LIFETIME = (
    90 * 86_400.0
)  # seconds after the last approval when one without a grant goes: that is as long as grants last


def save_client(connection: "Connection", id: str, **row: Any) -> None:
    """A client, in place of what there was of that id: kind, metadata, secret, made_at, fresh_until, failing_since."""
    connection.execute(tables.upsert(tables.client, {"id": id}, row))


def find_client(connection: "Connection", id: str) -> Any:
    """The row, or None."""
    of = tables.client
    return connection.execute(of.select().where(of.c.id == id)).one_or_none()


def mark_failing(connection: "Connection", id: str, now: float) -> None:
    """The client's document can't be had: note when that began."""
    of = tables.client
    connection.execute(of.update().where(of.c.id == id, of.c.failing_since.is_(None)).values(failing_since=now))


def list_clients(connection: "Connection") -> list[Any]:
    """All rows, the oldest first."""
    of = tables.client
    return list(connection.execute(of.select().order_by(of.c.made_at, of.c.id)))


def count_clients(connection: "Connection", kind: str) -> int:
    of = tables.client
    rows = tables.select(tables.func.count()).select_from(of).where(of.c.kind == kind)
    return int(connection.execute(rows).scalar_one())


def make_room(connection: "Connection", kind: str, most: int) -> bool:
    """Let there be less than `most` of a kind: the oldest that nobody approved give way. False: all are approved."""
    of = tables.client
    surplus = count_clients(connection, kind) - most + 1
    if surplus > 0:
        oldest = of.select().with_only_columns(of.c.id).where(of.c.kind == kind, of.c.granted_at.is_(None))
        gone = oldest.order_by(of.c.made_at).limit(surplus)
        surplus -= connection.execute(of.delete().where(of.c.id.in_(gone))).rowcount
    return surplus <= 0


def mark_approved(connection: "Connection", id: str, now: float) -> None:
    """A person approved the client."""
    of = tables.client
    connection.execute(of.update().where(of.c.id == id).values(granted_at=now))


def remove_client(connection: "Connection", id: str) -> list[str]:
    """Take a client away, with what was remembered and the refresh tokens. Gives the ids of its grants, to be ended."""
    connection.execute(tables.client.delete().where(tables.client.c.id == id))
    connection.execute(tables.consent.delete().where(tables.consent.c.client == id))
    of = tables.grant
    held = of.select().with_only_columns(of.c.id).where(of.c.client == id, of.c.revoked_at.is_(None))
    return list(connection.execute(held).scalars())


def remove_unused_clients(connection: "Connection", now: float) -> None:
    """Take away what nobody uses: never approved in a week, or approved long ago and without a grant since. What the
    operator added stays."""
    of = tables.client
    held = tables.grant.select().with_only_columns(tables.grant.c.client)
    never = of.c.granted_at.is_(None) & (of.c.made_at < now - UNAPPROVED_LIFETIME)
    left = (of.c.granted_at < now - UNUSED_LIFETIME) & of.c.id.not_in(held)
    connection.execute(of.delete().where(never | left, of.c.kind != CONFIGURED))
    gone = tables.consent.c.given_at < now - UNUSED_LIFETIME
    connection.execute(
        tables.consent.delete().where(gone & tables.consent.c.client.not_in(of.select().with_only_columns(of.c.id)))
    )
