"""Read and write the rows of nodes, and of the node that each principal is on. Each function runs inside a transaction.

Times are seconds since the epoch.
"""

from collections.abc import Collection, Mapping, Sequence
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
    nodes = {node.name: node for node in list_nodes(connection)}
    people = {name: nodes[name].people if name in nodes else 0 for name in names}

    def has_room(name: str) -> bool:
        is_full = 0 < limits.get(name, 0) <= people[name]
        return not is_full and not (name in nodes and nodes[name].draining)

    free = [name for name in names if has_files or has_room(name)]
    if free:
        node = min(free, key=lambda name: (people[name], name))
        tables.add_row(connection, tables.placement, {"principal": principal, "node": node, "placed_at": now})
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
    tables.write_row(connection, tables.node, {"name": name}, {"address": address, "seen_at": now}, draining=False)


def find_holder(connection: "Connection", name: str, addresses: Collection[str]) -> str | None:
    """Return which of the addresses has had the node's name for the longest, or None if none has it."""
    table = tables.node_address
    rows = connection.execute(table.select().filter_by(name=name)).all()
    held = [(row.since, row.address) for row in rows if row.address in addresses]
    return min(held)[1] if held else None


def bind_address(connection: "Connection", name: str, address: str, rivals: Collection[str], now: float) -> str:
    """Note that the node is at the address, unless one of `rivals` has had its name for longer. Return which has it."""
    holder = find_holder(connection, name, {address, *rivals})
    if holder is None:
        tables.write_row(connection, tables.node_address, {"address": address}, {"name": name, "since": now})
    return holder or address


def set_draining(connection: "Connection", name: str, address: str, *, draining: bool) -> None:
    """Set whether the node gets no new people. `address` is for a node that no server has reached: "" if unknown."""
    tables.write_row(connection, tables.node, {"name": name}, {"draining": draining}, address=address, seen_at=0.0)


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
