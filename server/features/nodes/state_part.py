"""Say what nodes keep in a state: a node its name and databases, a server the places of workspaces."""

from collections.abc import Iterator
from pathlib import Path

from toolgate.server.app.state_damage import StateDamage, check_file
from toolgate.server.app.state_part import Elsewhere, StatePart
from toolgate.server.base.text import escape_unprintable
from toolgate.server.features.nodes import rows as node_rows
from toolgate.server.features.nodes.node.databases import DATABASES_FILE, KnownDatabases
from toolgate.server.features.nodes.node.name import NAME_FILE, NODE_NAME
from toolgate.server.state.store import Store
from toolgate.tools.api.regular_file import read_regular

MAX_NAME = 128  # bytes


class NodesState(StatePart):
    """The state of a node, or of a server with nodes."""

    def find_damage(self, state: Path) -> Iterator[StateDamage]:
        name, databases = state / NAME_FILE, state / DATABASES_FILE

        def read_name() -> None:
            if not NODE_NAME.fullmatch(read_regular(name, MAX_NAME).decode(errors="replace").rstrip("\n")):
                raise ValueError("it holds no name")

        remedy = "write the node's name into it, which toolgate node list shows"
        yield from check_file(name, read_name, remedy, heals=False)
        remedy = "remove it, if one gateway uses it"
        yield from check_file(databases, lambda: KnownDatabases(databases), remedy, heals=False)

    def explain_no_people(self, state: Path) -> str:
        if not (state / NAME_FILE).exists():
            return ""
        return (
            "this folder is a node's, which knows no names of people: give the server's --state, or a WORKSPACE of "
            "toolgate workspace list"
        )

    async def find_workspaces(self, store: Store) -> dict[str, Elsewhere]:
        if store.is_empty():
            return {}
        addresses = {node.name: node.address for node in await store.read(node_rows.list_nodes)}
        placements = await store.read(node_rows.list_placements)
        return {name: _describe(name, node, addresses.get(node, "")) for name, node in placements.items()}

    async def list_backup_notes(self, store: Store) -> list[str]:
        nodes = [] if store.is_empty() else await store.read(node_rows.list_nodes)
        if not nodes:
            return []
        where = ", ".join(f"{node.name} ({node.address})" if node.address else node.name for node in nodes)
        return [
            f"workspaces are also at nodes, which this backup does not have: {escape_unprintable(where)}",
            "back up each node where it runs, with --with-workspaces and the --state of the node",
        ]


def _describe(principal: str, node: str, address: str) -> Elsewhere:
    where = f"{node}, {address}" if address else node
    remedy = f"is at a node ({where}): run this there, with the --state of the node and {principal}"
    return Elsewhere(
        place=escape_unprintable(f"at the node {node}"),
        hint="those at a node: run toolgate workspace there, with the --state of the node",
        remedy=escape_unprintable(f"the workspace of {principal} {remedy}"),
    )
