"""Read and write the rows of secrets, which arrive sealed. Each function runs inside a transaction."""

from collections.abc import Collection
from typing import Any

from toolgate.server.state import tables


def find_secrets(connection: "tables.Connection", principals: Collection[str], names: Collection[str]) -> list[Any]:
    """Return the rows of these names that one of the principals has."""
    table = tables.secret
    return list(connection.execute(table.select().where(table.c.principal.in_(principals), table.c.name.in_(names))))


def list_secrets(connection: "tables.Connection", principal: str | None, most: int) -> list[Any]:
    """Return the first rows of a principal, or of all, by name."""
    table = tables.secret
    chosen = table.select() if principal is None else table.select().where(table.c.principal == principal)
    return list(connection.execute(chosen.order_by(table.c.name, table.c.principal).limit(most)))


def count_secrets(connection: "tables.Connection", principal: str) -> int:
    table = tables.secret
    counted = tables.select(tables.func.count()).where(table.c.principal == principal)
    return int(connection.execute(counted).scalar_one())


def write_secret(connection: "tables.Connection", principal: str, name: str, sealed: str, now: float) -> None:
    """Write a secret in place of the one of this name."""
    tables.write_row(
        connection, tables.secret, {"principal": principal, "name": name}, {"sealed": sealed, "set_at": now}
    )


def remove_secret(connection: "tables.Connection", principal: str, name: str) -> bool:
    """Remove a secret, and return whether there was one."""
    table = tables.secret
    found = table.delete().where(table.c.principal == principal, table.c.name == name)
    return connection.execute(found.returning(table.c.name)).first() is not None


def remove_secrets(connection: "tables.Connection", principal: str) -> None:
    """Remove all secrets of a principal."""
    connection.execute(tables.secret.delete().where(tables.secret.c.principal == principal))
