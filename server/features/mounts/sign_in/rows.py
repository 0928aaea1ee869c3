"""Read and write the rows of connections, departures and registered clients. Each function runs inside a transaction.
What is secret arrives sealed, or as a digest."""

import secrets
from collections.abc import Collection
from typing import Any

from toolgate.server.state import tables

RESERVED = "@"  # begins what stands in place of a mount's name, and no mount's name
IDENTITY = f"{RESERVED}identity"  # the row of what a person's identity provider has given
ENDED = f"{RESERVED}ended "  # before an id and the mount: the row of what is to be revoked
AGAIN = 60.0  # seconds after a revocation was sent until it is sent again; then twice as long, and so on
USED = "used:"  # before the digest of a departure
ORPHANED = "the account was removed"
UNREVOKED = "it is to be revoked"


def find_connection(connection: "tables.Connection", principal: str, mount: str) -> Any:
    """Return the row of a person at a mount, or None."""
    table = tables.mount_connection
    return connection.execute(table.select().filter_by(principal=principal, mount=mount)).one_or_none()


def list_connections(connection: "tables.Connection", principal: str) -> list[Any]:
    """Return the rows of a person, by mount."""
    table = tables.mount_connection
    return list(connection.execute(table.select().filter_by(principal=principal).order_by(table.c.mount)))


def list_all_connections(
    connection: "tables.Connection", after: tuple[str, str], most: int, principals: Collection[str] | None
) -> list[Any]:
    """Return the connections of all people, or of these, without what is secret, by person and mount and from one
    on."""
    table = tables.mount_connection
    columns = (table.c.principal, table.c.mount, table.c.server, table.c.ended, table.c.made_at)
    principal, mount = after
    is_later = (table.c.principal > principal) | ((table.c.principal == principal) & (table.c.mount > mount))
    chosen = tables.select(*columns).where(is_later, ~table.c.mount.startswith(RESERVED))
    if principals is not None:
        chosen = chosen.where(table.c.principal.in_(principals))
    return list(connection.execute(chosen.order_by(table.c.principal, table.c.mount).limit(most)))


def write_connection(connection: "tables.Connection", principal: str, mount: str, **row: Any) -> None:
    """Write a connection in place of the one before."""
    tables.write_row(connection, tables.mount_connection, {"principal": principal, "mount": mount}, row)


def change_connection(
    connection: "tables.Connection", principal: str, mount: str, expected: str, **values: Any
) -> bool:
    """Change a connection that is still sealed like this. Return whether it was."""
    table = tables.mount_connection
    same = table.update().where(
        table.c.principal == principal, table.c.mount == mount, table.c.sealed == expected, table.c.ended.is_(None)
    )
    return connection.execute(same.values(**values).returning(table.c.mount)).first() is not None


def change_unless_refreshing(
    connection: "tables.Connection", principal: str, mount: str, expected: str, **values: Any
) -> bool:
    """Change a connection that is still sealed like this while no refresh is under way. Return whether it did."""
    row = find_connection(connection, principal, mount)
    if row is None or row.refreshing_since is not None:
        return False
    return change_connection(connection, principal, mount, expected, **values)


def orphan_connections(connection: "tables.Connection", principal: str) -> None:
    """Mark what a person has whose account is removed. A server removes it, which can have it revoked."""
    table = tables.mount_connection
    theirs = table.update().where(table.c.principal == principal, ~table.c.mount.startswith(ENDED))
    connection.execute(theirs.values(ended=ORPHANED))
    remove_departures(connection, principal)


def list_orphans(connection: "tables.Connection") -> list[str]:
    """Return the people whose connections are marked, each once."""
    table = tables.mount_connection
    found = tables.select(table.c.principal).where(table.c.ended == ORPHANED).distinct()
    return list(connection.execute(found).scalars())


def remove_connections(connection: "tables.Connection", principal: str, mount: str | None = None) -> list[Any]:
    """Remove a person's connection to one mount, or to all, and return the rows."""
    table = tables.mount_connection
    mine = table.delete().where(table.c.principal == principal, ~table.c.mount.startswith(ENDED))
    if mount is not None:
        mine = mine.where(table.c.mount == mount)
    return list(connection.execute(mine.returning(*table.c)))


def has_connections(connection: "tables.Connection") -> bool:
    """Return whether anybody has a connection to a mount, or one that is to be revoked."""
    mount = tables.mount_connection.c.mount
    others = (mount < IDENTITY, mount > IDENTITY)  # found by an index, which != is not
    return any(connection.execute(tables.select(mount).where(each).limit(1)).first() is not None for each in others)


def add_ended(connection: "tables.Connection", row: Any, now: float) -> None:
    """Add what is to be revoked of a connection that is replaced or removed."""
    mount = f"{ENDED}{secrets.token_hex(8)} {row.mount}"
    values = {"principal": row.principal, "server": row.server, "sealed": row.sealed, "ended": UNREVOKED}
    connection.execute(tables.mount_connection.insert().values(mount=mount, expires_at=now, made_at=now, **values))


def list_due(connection: "tables.Connection", now: float, most: int) -> list[Any]:
    """Return what is to be revoked now."""
    table = tables.mount_connection
    due = table.select().where(table.c.ended == UNREVOKED, table.c.expires_at <= now)
    return list(connection.execute(due.order_by(table.c.expires_at).limit(most)))


def take_due(connection: "tables.Connection", now: float, most: int) -> list[Any]:
    """Return what is to be revoked now. It is due again later, unless it is removed."""
    table, found = tables.mount_connection, list_due(connection, now, most)
    for row in found:
        own = table.update().where(table.c.principal == row.principal, table.c.mount == row.mount)
        connection.execute(own.values(expires_at=now + max(AGAIN, now - row.made_at)))
    return found


def remove_ended(connection: "tables.Connection", principal: str, mount: str) -> None:
    """Remove what is revoked. `mount`: as in its row."""
    table = tables.mount_connection
    connection.execute(table.delete().where(table.c.principal == principal, table.c.mount == mount))


def remove_identities(connection: "tables.Connection", most: int) -> list[Any]:
    """Remove some of what identity providers have given, and return the rows."""
    table = tables.mount_connection
    some = tables.select(table.c.principal).where(table.c.mount == IDENTITY).order_by(table.c.principal).limit(most)
    chosen = list(connection.execute(some).scalars())
    removed = table.delete().where(table.c.mount == IDENTITY, table.c.principal.in_(chosen))
    return list(connection.execute(removed.returning(*table.c)))


def add_departure(connection: "tables.Connection", now: float, most: int, **row: Any) -> None:
    """Add a departure, and remove those that are over and a person's oldest."""
    table = tables.mount_departure
    connection.execute(table.delete().where(table.c.until <= now))
    connection.execute(table.insert().values(**row))
    mine = tables.select(table.c.hash).where(table.c.principal == row["principal"])
    oldest = mine.order_by(table.c.until.desc(), table.c.hash).offset(most)
    connection.execute(table.delete().where(table.c.hash.in_(oldest)))


def use_departure(connection: "tables.Connection", hashed: str, principal: str, now: float) -> Any:
    """Return a person's departure, once, or None. It stays under another name until the sign-in has ended: an account
    that is removed meanwhile takes it along. Another person's is left alone."""
    table = tables.mount_departure
    row = connection.execute(table.select().where(table.c.hash == hashed, table.c.principal == principal)).one_or_none()
    if row is None or row.until <= now:
        return None
    connection.execute(table.update().where(table.c.hash == hashed).values(hash=USED + hashed))
    return row


def end_departure(connection: "tables.Connection", hashed: str) -> bool:
    """Remove a departure that is used, and return whether it was there."""
    table = tables.mount_departure
    used = table.delete().where(table.c.hash == USED + hashed)
    return connection.execute(used.returning(table.c.hash)).first() is not None


def remove_departures(connection: "tables.Connection", principal: str) -> None:
    connection.execute(tables.mount_departure.delete().where(tables.mount_departure.c.principal == principal))


def find_client(connection: "tables.Connection", issuer: str, redirect_uri: str) -> Any:
    """Return the row of the client that is registered at an issuer, or None."""
    table = tables.mount_client
    return connection.execute(table.select().filter_by(issuer=issuer, redirect_uri=redirect_uri)).one_or_none()


def write_client(connection: "tables.Connection", issuer: str, redirect_uri: str, sealed: str, now: float) -> None:
    key = {"issuer": issuer, "redirect_uri": redirect_uri}
    tables.write_row(connection, tables.mount_client, key, {"sealed": sealed, "made_at": now})


def remove_client(connection: "tables.Connection", issuer: str, redirect_uri: str) -> None:
    table = tables.mount_client
    connection.execute(table.delete().where(table.c.issuer == issuer, table.c.redirect_uri == redirect_uri))
