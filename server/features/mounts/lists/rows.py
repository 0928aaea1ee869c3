"""Read and write what single people were shown of mounted servers. Each function runs inside a transaction.

What is kept is bounded, for each person and for all together: what was kept longest ago gives way.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from toolgate.server.state import tables


class KeptBounds(msgspec.Struct, frozen=True):
    """How many lists are kept, and how many characters of them."""

    lists: int
    size: int


def find_lists(connection: "tables.Connection", principal: str, mount: str, profile: str) -> Any:
    """Return the row of a person's lists, or None."""
    key = {"principal": principal, "mount": mount, "profile": profile}
    return connection.execute(tables.mount_list.select().filter_by(**key)).one_or_none()


def write_lists(
    connection: "tables.Connection",
    key: dict[str, str],
    row: dict[str, Any],
    of_person: KeptBounds,
    of_all: KeptBounds,
) -> None:
    """Write a person's lists in place of those before. `key`: the principal, the mount and the profile."""
    table = tables.mount_list
    tables.write_row(connection, table, key, row)
    _make_room(connection, (table.c.principal == key["principal"],), of_person)
    _make_room(connection, (), of_all)


def remove_lists(connection: "tables.Connection", principal: str) -> None:
    """Remove the lists of a person."""
    connection.execute(tables.mount_list.delete().where(tables.mount_list.c.principal == principal))


def remove_mount(connection: "tables.Connection", mount: str) -> None:
    """Remove the lists of a mount."""
    connection.execute(tables.mount_list.delete().where(tables.mount_list.c.mount == mount))


def _make_room(
    connection: "tables.Connection", chosen: "Iterable[tables.ColumnElement[bool]]", bounds: KeptBounds
) -> None:
    """Remove the oldest of the chosen lists until the others are within the bounds."""
    table = tables.mount_list
    key = (table.c.principal, table.c.mount, table.c.profile)
    total = tables.select(tables.func.count(), tables.func.sum(table.c.size)).where(*chosen)
    count, size = connection.execute(total).one()
    if count <= bounds.lists and size <= bounds.size:
        return
    oldest = tables.select(*key, table.c.size).where(*chosen).order_by(table.c.kept_at, *key)
    for row in connection.execute(oldest).all():
        if count <= bounds.lists and size <= bounds.size:
            return
        connection.execute(table.delete().where(*(column == value for column, value in zip(key, row, strict=False))))
        count, size = count - 1, size - row.size
