"""List nodes, drain them and move people between them (`toolgate node list`, `drain` and `move`).

They reach the nodes of --node, and those that servers on this state have reached.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from toolgate.server.app.features import build_host
from toolgate.server.base import progress
from toolgate.server.base.errors import UsageError
from toolgate.server.base.principals.principal import LOCAL_NAME
from toolgate.server.base.text import escape_unprintable
from toolgate.server.cli.commands.store_command import CommandError, with_store
from toolgate.server.cli.commands.workspace import find_principal, format_size
from toolgate.server.cli.terminal.output import print_table
from toolgate.server.config.load import Config
from toolgate.server.features.nodes import rows as node_rows
from toolgate.server.features.nodes.address import parse_node_address
from toolgate.server.features.nodes.connect import read_certificate
from toolgate.server.features.nodes.gateway import link
from toolgate.server.features.nodes.gateway.carry import MoveError, move_workspace
from toolgate.server.features.nodes.gateway.link import MAX_PEOPLE, NodeLink
from toolgate.server.features.nodes.gateway.remote_methods import NodeRequests
from toolgate.server.features.nodes.node.databases import derive_database_id, find_database_id
from toolgate.server.features.nodes.rows import KnownNode
from toolgate.server.state.store import Store

TIMEOUT = 2.0  # seconds for a node to answer
log = logging.getLogger("toolgate.node")
NOBODY = "give the address of each node with --node, as to the server"


class FoundNode(msgspec.Struct, frozen=True):
    """A node at an address, or in the database: there `address` is "" if no server has reached it. `link` is None if it
    does not answer."""

    name: str
    address: str
    row: KnownNode | None
    link: NodeLink | None


@with_store(upgrades=False)
async def list_nodes(store: Store, config: Config) -> None:
    """Print the nodes, with what runs there and how many people they have."""
    async with _reach_nodes(store, config) as nodes:
        lines = await asyncio.gather(*map(_describe, nodes))
    if not lines:
        raise CommandError(f"no node is known here: {NOBODY}")
    print_table([("NAME", "ADDRESS", "REACHABLE", "VERSION", "LEVEL", "PEOPLE", "RUNNING", "DRAINING"), *lines])


@with_store()
async def drain(store: Store, config: Config, *, name: str, undo: bool) -> None:
    """Give a node no new people, or new people again."""
    async with _reach_nodes(store, config) as nodes:
        found = _find_node(nodes, name)
    work = partial(node_rows.set_draining, name=name, address=found.address, draining=not undo)
    await store.transact(work, alone="nodes")
    people = found.row.people if found.row is not None else 0
    if undo:
        print(f"the node {name} gets new people again")
    else:
        print(f"the node {name} gets no new people; {people} are on it: toolgate node move takes one to another")


@with_store()
async def limit(store: Store, config: Config, *, name: str, number: str) -> None:
    """Set how many people a node gets."""
    if not (number.isascii() and number.isdecimal() and int(number) <= MAX_PEOPLE):
        raise UsageError(f"N is the number of people, from 1 to {MAX_PEOPLE}, or 0 for any number, not {number!r}")
    async with _reach_nodes(store, config) as nodes:
        found = _find_node(nodes, name)
    work = partial(node_rows.set_limit, name=name, address=found.address, most=int(number))
    await store.transact(work, alone="nodes")
    most = f"{int(number)} people" if int(number) else "any number of people"
    print(f"the node {name} gets {most}; a lower number that it says itself (--max-people) counts, too")


@with_store()
async def adopt(store: Store, config: Config, *, name: str, undo: bool) -> None:
    """Let the files of people without a node count at a node, or count no longer."""
    async with _reach_nodes(store, config) as nodes:
        found = _find_node(nodes, name)
    known = found.row.max_people if found.row is not None else None
    if known and not undo:
        raise CommandError(f"the node {name} gets {known} people at most: toolgate node limit {name} 0 first")
    work = partial(node_rows.set_adopting, name=name, address=found.address, adopts=not undo)
    await store.transact(work, alone="nodes")
    if undo:
        print(f"new people are where there is room, whatever files the node {name} says it has")
    else:
        print(f"people without a node are on {name} if it says that it has their files; --undo ends that")


@with_store()
async def move(store: Store, config: Config, *, who: str, name: str) -> None:
    """Move a person's workspace to a node."""
    principal = await find_principal(store, who)
    async with _reach_nodes(store, config) as nodes:
        target = _find_node(nodes, name).link
        if target is None:
            raise CommandError(f"the node {name} does not answer: nothing was moved")
        links = [node.link for node in nodes if node.link is not None]
        try:
            with progress.terminal_progress(config.environment).show(f"moving {principal} to {name}"):
                done = await move_workspace(store, links, principal, target)
        except MoveError as error:
            raise CommandError(str(error)) from None
    if done.source:
        omission = done.omission and f", {done.omission}"
        print(f"moved: {principal} from {done.source} to {name}, {format_size(done.size)} packed{omission}")
        print("the output of its earlier commands and background tasks is gone")
    else:
        print(f"{principal} is on the node {name}")
    for reason in done.remains:
        print(f"a copy that is not used may remain: {escape_unprintable(reason)}; repeat this to remove it")


@asynccontextmanager
async def _reach_nodes(store: Store, config: Config) -> AsyncGenerator[list[FoundNode]]:
    """Yield the nodes by name, connected where they answer. One that two addresses lead to is named once."""
    rows = [] if store.is_empty() else await store.read(node_rows.list_nodes)
    addresses = list(dict.fromkeys([*config.node, *(parse_node_address(row.address) for row in rows if row.address)]))
    by_name = {row.name: row for row in rows}
    found: dict[str, FoundNode] = {}
    away: list[FoundNode] = []
    links: list[NodeLink] = []
    certificate = read_certificate(config, "--node", *addresses)
    secret = build_host(config)[0].secret()
    database = find_database_id(store.folder) if secret is None else derive_database_id(secret)
    answers = await asyncio.to_thread(link.greet_all, addresses, TIMEOUT, certificate) if addresses else []
    for address, answer in answers:
        if isinstance(answer, Exception):
            name = next((row.name for row in rows if row.address == str(address)), "?")
            away.append(FoundNode(name, str(address), by_name.get(name), None))
        elif answer.name not in found:
            links.append(NodeLink(address, answer, certificate, database))
            found[answer.name] = FoundNode(answer.name, str(address), by_name.get(answer.name), links[-1])
    rest = [FoundNode(row.name, row.address, row, None) for row in rows if row.name not in found]
    silent = {node.name: node for node in rest}
    nodes = [*found.values(), *silent.values(), *(node for node in away if node.name == "?")]
    try:
        yield sorted(nodes, key=lambda node: (node.name, node.address))
    finally:
        await asyncio.gather(*(each.close() for each in links))


def _find_node(nodes: list[FoundNode], name: str) -> FoundNode:
    """Return the node of that name. Raises UsageError."""
    found = next((node for node in nodes if node.name == name), None)
    if found is None:
        names = ", ".join(sorted({node.name for node in nodes} - {"?"}))
        raise UsageError(f"there is no node {name!r}: {f'nodes are {names}' if names else NOBODY}")
    return found


async def _describe(node: FoundNode) -> tuple[str, ...]:
    """Return the node's cells in the table."""
    version = level = running = "-"
    if node.link is not None and node.link.welcome is not None:
        version, level = node.link.welcome.release, node.link.welcome.level
        try:
            load = await NodeRequests.create(node.link, LOCAL_NAME).measure_load()
            running = str(load.foreground + load.background)
        except Exception as error:  # noqa: BLE001  # a node of another release may answer anything
            log.debug("the load of the node at %s is unknown: %s", node.address, error)
    reachable = "no" if node.link is None or node.link.is_away else "yes"
    people = "0" if node.row is None else str(node.row.people)
    if node.row is not None and node.row.max_people:
        people += f"/{node.row.max_people}"
    draining = "yes" if node.row is not None and node.row.draining else "no"
    cells = (node.name, node.address or "?", reachable, version, level, people, running, draining)
    return tuple(map(escape_unprintable, cells))
