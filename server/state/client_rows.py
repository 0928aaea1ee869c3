"""The rows of OAuth clients: those registered dynamically, metadata documents fetched lately, and those the operator
added. Each function runs inside a transaction. Times are seconds since the epoch.
"""

from typing import TYPE_CHECKING, Any

from toolgate.server.state.oauth import OAuthTables

if TYPE_CHECKING:
    from sqlalchemy import Connection

UNAPPROVED_LIFETIME = 7 * 86_400.0  # seconds after which a client nobody ever approved goes
CONFIGURED = "configured"  # the kind of those the operator added
UNUSED_LIFETIME = (
    90 * 86_400.0
)  # seconds after the last approval when one without a grant goes: that is as long as grants last


def _tables() -> OAuthTables:
    from toolgate.server.state.tables import tables  # start-up

    return tables().oauth


def save_client(connection: "Connection", id: str, **row: Any) -> None:
    """A client, in place of what there was of that id: kind, metadata, secret, made_at, fresh_until, failing_since."""
    from sqlalchemy.dialects.sqlite import insert  # start-up

    made = insert(_tables().client).values(id=id, **row)
    connection.execute(made.on_conflict_do_update(index_elements=["id"], set_=row))


def find_client(connection: "Connection", id: str) -> Any:
    """The row, or None."""
    of = _tables().client
    return connection.execute(of.select().where(of.c.id == id)).one_or_none()


def mark_failing(connection: "Connection", id: str, now: float) -> None:
    """The client's document can't be had: note when that began."""
    of = _tables().client
    connection.execute(of.update().where(of.c.id == id, of.c.failing_since.is_(None)).values(failing_since=now))


def list_clients(connection: "Connection") -> list[Any]:
    """All rows, the oldest first."""
    of = _tables().client
    return list(connection.execute(of.select().order_by(of.c.made_at, of.c.id)))


def count_clients(connection: "Connection", kind: str) -> int:
    from sqlalchemy import func, select  # start-up

    of = _tables().client
    return int(connection.execute(select(func.count()).select_from(of).where(of.c.kind == kind)).scalar_one())


def make_room(connection: "Connection", kind: str, most: int) -> bool:
    """Let there be less than `most` of a kind: the oldest that nobody approved give way. False: all are approved."""
    of = _tables().client
    surplus = count_clients(connection, kind) - most + 1
    if surplus > 0:
        oldest = of.select().with_only_columns(of.c.id).where(of.c.kind == kind, of.c.granted_at.is_(None))
        gone = oldest.order_by(of.c.made_at).limit(surplus)
        surplus -= connection.execute(of.delete().where(of.c.id.in_(gone))).rowcount
    return surplus <= 0


def mark_approved(connection: "Connection", id: str, now: float) -> None:
    """A person approved the client."""
    of = _tables().client
    connection.execute(of.update().where(of.c.id == id).values(granted_at=now))


def remove_client(connection: "Connection", id: str) -> list[str]:
    """Take a client away, with what was remembered and the refresh tokens. Gives the ids of its grants, to be ended."""
    all = _tables()
    connection.execute(all.client.delete().where(all.client.c.id == id))
    connection.execute(all.consent.delete().where(all.consent.c.client == id))
    of = all.grant
    held = of.select().with_only_columns(of.c.id).where(of.c.client == id, of.c.revoked_at.is_(None))
    return list(connection.execute(held).scalars())


def remove_unused_clients(connection: "Connection", now: float) -> None:
    """Take away what nobody uses: never approved in a week, or approved long ago and without a grant since. What the
    operator added stays."""
    all = _tables()
    of = all.client
    held = all.grant.select().with_only_columns(all.grant.c.client)
    never = of.c.granted_at.is_(None) & (of.c.made_at < now - UNAPPROVED_LIFETIME)
    left = (of.c.granted_at < now - UNUSED_LIFETIME) & of.c.id.not_in(held)
    connection.execute(of.delete().where(never | left, of.c.kind != CONFIGURED))
    gone = all.consent.c.given_at < now - UNUSED_LIFETIME
    connection.execute(
        all.consent.delete().where(gone & all.consent.c.client.not_in(of.select().with_only_columns(of.c.id)))
    )
