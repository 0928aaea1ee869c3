"""Read and write what people have switched off. Each function runs inside a transaction."""

from typing import TYPE_CHECKING, Any

from toolgate.server.state import tables

if TYPE_CHECKING:
    from toolgate.server.state.tables import Connection


def find_choice(connection: "Connection", principal: str) -> Any:
    """Return the row of a person, or None."""
    return connection.execute(tables.mount_choice.select().filter_by(principal=principal)).one_or_none()


def list_choices(connection: "Connection", since: float) -> list[Any]:
    """Return the rows that have changed since a time, in seconds since 1970."""
    table = tables.mount_choice
    return list(connection.execute(table.select().where(table.c.changed_at >= since)))


def write_choice(connection: "Connection", principal: str, switched_off: str, now: float) -> None:
    row = {"switched_off": switched_off, "changed_at": now}
    tables.write_row(connection, tables.mount_choice, {"principal": principal}, row)


def remove_choice(connection: "Connection", principal: str) -> None:
    connection.execute(tables.mount_choice.delete().where(tables.mount_choice.c.principal == principal))
