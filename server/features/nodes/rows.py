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
    the principals on it. `max_people`: how many it takes; None where nothing has said, 0 for any number. `adopts`:
    files of people without a node count there."""

    name: str
    address: str
    draining: bool
    people: int
    max_people: int | None = None
    adopts: bool = False

    def find_limit(self, word: int) -> int:
        """Return how many people the node takes, 0 for any number. `word`: the node's own, which only lowers it."""
        numbers = [number for number in (self.max_people, word) if number]
        return min(numbers, default=0)


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
    unless it is draining or full. Return None if all are. `limits` has the number of people that nodes say they take, 0
    for any: the first such number stays, and a later word only lowers it. Where some nodes have a limit, one that has
    none gets nobody: "any" is the operator's word. `has_files`: the nodes say that they have files of theirs, which the
    operator lets count, and which counts nowhere that has a limit."""
    nodes = {node.name: node for node in list_nodes(connection)}
    unknown = KnownNode("", "", False, 0)
    are_limited = any(node.max_people for node in nodes.values())
    free = dict[str, int]()
    for name in names:
        node, word = nodes.get(name, unknown), limits.get(name, 0)
        limit = node.find_limit(word)
        is_open = not limit and (node.max_people is not None or not are_limited)
        if not node.draining and (is_open or (not has_files and node.people < limit)):
            free[name] = node.people
    if free:
        chosen = min(free, key=lambda name: (free[name], name))
        tables.add_row(connection, tables.placement, {"principal": principal, "node": chosen, "placed_at": now})
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


def note_limit(connection: "Connection", name: str, word: int) -> int | None:
    """Note how many people the node says it takes, unless a number is known. Return how many it may have: 0 for any
    number, as the operator says, None for any, as nobody says otherwise."""
    table = tables.node
    if word > 0:
        _add_node(connection, name)
        unsaid = table.update().where(table.c.name == name, table.c.max_people.is_(None))
        connection.execute(unsaid.values(max_people=word))
    row = connection.execute(table.select().filter_by(name=name)).one_or_none()
    return None if row is None else row.max_people


def set_limit(connection: "Connection", name: str, address: str, most: int) -> None:
    """Set how many people the node takes, 0 for any number. `address`: as for `set_draining`."""
    values = {"max_people": most}
    tables.write_row(connection, tables.node, {"name": name}, values, address=address, seen_at=0.0, draining=False)


def set_adopting(connection: "Connection", name: str, address: str, *, adopts: bool) -> None:
    """Set whether the files of people without a node count at the node. `address`: as for `set_draining`."""
    values = {"adopts": adopts}
    tables.write_row(connection, tables.node, {"name": name}, values, address=address, seen_at=0.0, draining=False)


def list_adopting(connection: "Connection") -> set[str]:
    """Return the names of the nodes where the files of people without a node count."""
    return {row.name for row in connection.execute(tables.node.select().filter_by(adopts=True))}


def find_holder(connection: "Connection", name: str, addresses: Collection[str]) -> str | None:
    """Return which of the addresses has had the node's name for the longest, or None if none has it."""
    table = tables.node_address
    rows = connection.execute(table.select().filter_by(name=name)).all()
    held = [(row.since, row.address) for row in rows if row.address in addresses]
    return min(held)[1] if held else None


def bind_address(connection: "Connection", name: str, address: str, rivals: Collection[str], now: float) -> str:
    """Note that the node is at the address, unless one of `rivals` has had its name for longer. Return which has it.

    A node that is new at an address is limited as the one before: another name frees no node of its limit.
    """
    holder = find_holder(connection, name, {address, *rivals})
    if holder is None:
        before = connection.execute(tables.node_address.select().filter_by(address=address)).one_or_none()
        tables.write_row(connection, tables.node_address, {"address": address}, {"name": name, "since": now})
        if before is not None:
            _inherit_limits(connection, before.name, name)
    return holder or address


def _inherit_limits(connection: "Connection", before: str, name: str) -> None:
    """Give a node what is left of the limit of the one before, and its drain."""
    nodes = {node.name: node for node in list_nodes(connection)}
    old = nodes.get(before)
    if old is None:
        return
    _add_node(connection, name)
    most = nodes[name].max_people if name in nodes else None
    left = old.max_people - old.people if old.max_people else None
    is_full = left is not None and left <= 0
    if left is not None and not is_full:
        most = min(left, most or left)
    values = {"max_people": most} | ({"draining": True} if old.draining or is_full else {})
    table = tables.node
    connection.execute(table.update().where(table.c.name == name).values(values))


def _add_node(connection: "Connection", name: str) -> None:
    tables.add_row(connection, tables.node, {"name": name, "address": "", "draining": False, "seen_at": 0.0})


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
        KnownNode(
            name,
            rows[name].address,
            rows[name].draining,
            people.get(name, 0),
            rows[name].max_people,
            rows[name].adopts,
        )
        if name in rows
        else KnownNode(name, "", False, people[name])
        for name in sorted({*rows, *people})
    ]
