"""Read and write the rows of nodes, and of the node that each principal is on. Each function runs inside a transaction.

Times are seconds since the epoch.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from toolgate.server.state import tables

if TYPE_CHECKING:
    from toolgate.server.state.tables import Connection as Connection


class KnownNode(msgspec.Struct, frozen=True):
    """A node as the database knows it. `address` is where a server last reached it, "" if none has. `people` counts
    the principals on it."""

    name: str
    address: str
    draining: bool
    people: int


def find_placement(connection: "Connection", principal: str) -> str | None:
    """Return the name of the principal's node, or None for a principal without one."""
    row = connection.execute(tables.placement.select().filter_by(principal=principal)).one_or_none()
    return None if row is None else row.node


def place(
    connection: "Connection",
    principal: str,
    names: Sequence[str],
    now: float,
    *,
    has_files: bool,
    limits: Mapping[str, int],
) -> str | None:
    """Return the principal's node. One without a node gets that of `names` with the fewest people, the first of equals,
    unless it is draining or full and not `has_files` of theirs. Return None if all are. `limits` has the number of
    people that nodes take, 0 for any."""
    table = tables.placement
    nodes = {node.name: node for node in list_nodes(connection)}
    people = {name: nodes[name].people if name in nodes else 0 for name in names}

    def has_room(name: str) -> bool:
        is_full = 0 < limits.get(name, 0) <= people[name]
        return not is_full and not (name in nodes and nodes[name].draining)

    free = [name for name in names if has_files or has_room(name)]
    if free:
        node = min(free, key=lambda name: (people[name], name))
        row = tables.insert(table).values(principal=principal, node=node, placed_at=now)
        connection.execute(row.on_conflict_do_nothing())
    return find_placement(connection, principal)


def claim_placement(connection: "Connection", principal: str, now: float) -> tuple[str, float] | None:
    """Return the principal's node and a claim, which ends all earlier ones; None for a principal without a node."""
    table = tables.placement
    row = connection.execute(table.select().filter_by(principal=principal)).one_or_none()
    if row is None:
        return None
    claim = max(now, row.placed_at + 1e-3)  # another one, whatever the clock does
    connection.execute(table.update().where(table.c.principal == principal).values(placed_at=claim))
    return row.node, claim


def move_placement(connection: "Connection", principal: str, target: str, claim: float) -> bool:
    """Change the principal's node. Return whether the claim held."""
    table = tables.placement
    mine = table.update().where(table.c.principal == principal, table.c.placed_at == claim)
    return connection.execute(mine.values(node=target)).rowcount == 1


def note_node(connection: "Connection", name: str, address: str, now: float) -> None:
    """Note that a server reached the node at the address."""
    row = tables.insert(tables.node).values(name=name, address=address, draining=False, seen_at=now)
    connection.execute(row.on_conflict_do_update(index_elements=["name"], set_={"address": address, "seen_at": now}))


def set_draining(connection: "Connection", name: str, *, draining: bool) -> bool:
    """Set whether the node gets no new people. Return whether it is known."""
    table = tables.node
    return connection.execute(table.update().where(table.c.name == name).values(draining=draining)).rowcount == 1


def list_placements(connection: "Connection") -> dict[str, str]:
    """Return the name of the node of each principal."""
    return {row.principal: row.node for row in connection.execute(tables.placement.select())}


def list_nodes(connection: "Connection") -> list[KnownNode]:
    """Return the nodes by name: those that were reached, and those that people are on."""
    by_node = tables.placement.c.node
    counts = tables.select(by_node, tables.func.count().label("people")).group_by(by_node)
    people: dict[str, int] = {row.node: row.people for row in connection.execute(counts)}
    rows = {row.name: row for row in connection.execute(tables.node.select())}
    return [
        KnownNode(name, rows[name].address, rows[name].draining, people.get(name, 0))
        if name in rows
        else KnownNode(name, "", False, people[name])
        for name in sorted({*rows, *people})
    ]
