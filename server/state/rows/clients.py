"""Read and write the rows of OAuth clients: registered dynamically, by metadata document, or by the operator.

Each function runs inside a transaction. Times are seconds since the epoch.
"""

from typing import Any

from toolgate.server.state import tables

UNAPPROVED_LIFETIME = 7 * 86_400.0  # seconds after which a client without any approval is removed
CONFIGURED = "configured"  # the kind of those the operator added
UNUSED_LIFETIME = 90 * 86_400.0  # seconds from the last approval to the end of one without a grant: a grant's lifetime


def save_client(connection: "tables.Connection", id: str, **row: Any) -> None:
    """Write a client in place of an older row: kind, metadata, secret, made_at, fresh_until, failing_since."""
    tables.write_row(connection, tables.client, {"id": id}, row)


def find_client(connection: "tables.Connection", id: str) -> Any:
    """Return the row, or None."""
    return connection.execute(tables.client.select().filter_by(id=id)).one_or_none()


def mark_failing(connection: "tables.Connection", id: str, now: float) -> None:
    """Note when the client's document first could not be fetched."""
    table = tables.client
    unmarked = table.update().where(table.c.id == id, table.c.failing_since.is_(None))
    connection.execute(unmarked.values(failing_since=now))


def list_clients(connection: "tables.Connection") -> list[Any]:
    """Return all rows, the oldest first."""
    return list(connection.execute(tables.client.select().order_by(tables.client.c.made_at, tables.client.c.id)))


def count_clients(connection: "tables.Connection", kind: str) -> int:
    table = tables.client
    rows = tables.select(tables.func.count()).select_from(table).where(table.c.kind == kind)
    return int(connection.execute(rows).scalar_one())


def make_room(connection: "tables.Connection", kind: str, most: int) -> bool:
    """Remove the oldest clients without approval until there are less than `most` of the kind. False if that fails."""
    table = tables.client
    surplus = count_clients(connection, kind) - most + 1
    if surplus > 0:
        oldest = table.select().with_only_columns(table.c.id).where(table.c.kind == kind, table.c.granted_at.is_(None))
        gone = oldest.order_by(table.c.made_at).limit(surplus)
        surplus -= connection.execute(table.delete().where(table.c.id.in_(gone))).rowcount
    return surplus <= 0


def mark_approved(connection: "tables.Connection", id: str, now: float) -> None:
    """Note that a person approved the client."""
    connection.execute(tables.client.update().where(tables.client.c.id == id).values(granted_at=now))


def remove_client(connection: "tables.Connection", id: str) -> list[str]:
    """Remove a client with its consents. Return the ids of its grants, for the caller to revoke."""
    connection.execute(tables.client.delete().where(tables.client.c.id == id))
    connection.execute(tables.consent.delete().where(tables.consent.c.client == id))
    table = tables.grant
    grants = tables.select(table.c.id).where(table.c.client == id, table.c.revoked_at.is_(None))
    return list(connection.execute(grants).scalars())


def remove_unused_clients(connection: "tables.Connection", now: float) -> None:
    """Remove clients that were not approved in a week, or were approved long ago and have no grant.

    Those of the operator stay.
    """
    table = tables.client
    has_grant = tables.select(tables.grant.c.id).where(tables.grant.c.client == table.c.id).exists()
    never = table.c.granted_at.is_(None) & (table.c.made_at < now - UNAPPROVED_LIFETIME)
    left = (table.c.granted_at < now - UNUSED_LIFETIME) & ~has_grant
    for unused in (never, left):
        connection.execute(table.delete().where(unused, table.c.kind != CONFIGURED))
    consent = tables.consent
    has_client = tables.select(table.c.id).where(table.c.id == consent.c.client).exists()
    connection.execute(consent.delete().where(consent.c.given_at < now - UNUSED_LIFETIME, ~has_client))
