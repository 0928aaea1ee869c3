"""A gateway of several nodes, with a database of its own."""

import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

from tests.server.features.nodes.nodes import NodeProcess, list_nobody
from tests.tools.shell_commands import BOUND
from toolgate.server.base.watch import FileChanges
from toolgate.server.features.nodes import rows as node_rows
from toolgate.server.features.nodes.gateway import link
from toolgate.server.features.nodes.gateway.placement import Placement
from toolgate.server.features.nodes.gateway.remote_workspaces import RemoteWorkspaces
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.state.store import Store


def greet_nodes(*nodes: NodeProcess) -> list[link.NodeLink]:
    """Return links to the nodes, which know those that answer."""
    answers = link.greet_all([node.address for node in nodes], BOUND)
    return [link.NodeLink(address, None if isinstance(it, Exception) else it) for address, it in answers]


@contextlib.asynccontextmanager
async def several_gateway(store: Store, *nodes: NodeProcess) -> AsyncIterator[RemoteWorkspaces]:
    placement = Placement(store, greet_nodes(*nodes))
    remote = RemoteWorkspaces(placement, FileChanges(), lambda _, end: end.confirm(), list_nobody)
    try:
        yield remote
    finally:
        await remote.close()


@contextlib.contextmanager
def database(folder: Path) -> Iterator[Store]:
    with contextlib.closing(SqliteStore(folder / "gateway")) as store:
        yield store


async def place_at(store: Store, principal: str, name: str) -> None:
    await store.transact(
        partial(node_rows.place, principal=principal, names=[name], now=time.time(), has_files=False, limits={}),
    )
