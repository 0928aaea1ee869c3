"""Find the node that has a principal's workspace, and choose one at its first call. It stays there: the files do."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from toolgate.server.base.errors import StateError
from toolgate.server.features.nodes import rows as node_rows
from toolgate.server.features.nodes.address import NodeAddress
from toolgate.server.features.nodes.gateway.link import NodeLink, NodeUnreachableError
from toolgate.server.features.nodes.gateway.remote_methods import NodeRequests
from toolgate.server.state.store import Store
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.workspace import WorkspaceUnreachableError

MAX_KNOWN = 100_000  # principals whose node is held in memory
MAX_REFUSALS = 1_000
NOTHING = "nothing was done"
UNKNOWN = "it is not known yet on which node your workspace is: call again"

log = logging.getLogger("toolgate.node")


class Placement:
    """The nodes of principals, as the database has them. `links` lead to the nodes."""

    def __init__(self, store: Store, links: Sequence[NodeLink]) -> None:
        self.links = links
        self._store = store
        self._names: dict[str, str] = {}  # principal → name of its node
        self._bound: dict[NodeAddress, str] = {}  # names that the database has for addresses
        self._refusals: dict[str, Callable[[], ToolError]] = {}  # principal → why it has none

    def find_link(self, principal: str) -> NodeLink | None:
        """Return the link to the principal's node, or None if it is not known."""
        name = self._names.get(principal)
        return None if name is None else next((link for link in self.links if link.name == name), None)

    def get_link(self, principal: str) -> NodeLink:
        """Return the link to the principal's node, which `locate` found before. Raises ToolError if it did not."""
        link = self.find_link(principal)
        if link is not None:
            return link
        name = self._names.get(principal)
        if name is None:
            raise self._refusals.get(principal, partial(ToolError, UNKNOWN))()
        if any(not link.name for link in self.links):  # it may be that one
            raise WorkspaceUnreachableError(f"your workspace is on the node {name}, which does not answer: {NOTHING}")
        raise ToolError(
            f"your workspace is on the node {name}, and this server does not use it: {NOTHING}; its operator adds "
            "--node with that node's address"
        )

    async def locate(self, principal: str, *, chooses: bool = True) -> NodeLink:
        """Return the link to the principal's node. If it has none, choose one, or without `chooses` raise KeyError.
        Raises ToolError."""
        if principal not in self._names:
            try:
                name = await self._store.read(partial(node_rows.find_placement, principal=principal))
                if name is None and not chooses:
                    raise KeyError(f"{principal} is on no node")
                self._note(principal, name or await self._choose(principal))
            except ToolError as error:
                self._refusals.pop(principal, None)
                while len(self._refusals) >= MAX_REFUSALS:
                    del self._refusals[next(iter(self._refusals))]
                self._refusals[principal] = partial(type(error), error.text)  # not the error: it holds the request
                raise
        return self.get_link(principal)

    async def relocate(self, principal: str) -> NodeLink:
        """Return the link to the node that the database names now, as the one before says that the workspace is not
        used there. Raises ToolError while it moves."""
        self._names.pop(principal, None)
        link = await self.locate(principal)
        if not await NodeRequests.create(link, principal).settle():
            raise ToolError(f"your workspace is being moved to another node: {NOTHING}; call again in a while")
        return link

    async def bind_name(self, link: NodeLink, name: str) -> None:
        """Bind a node's name to the address of the link, which the connection has verified, and note how many people it
        takes, as it says first.

        The name belongs to the one of the links' addresses that has had it for the longest: another node can't take an
        absent one's people by its name. A node that says another name gives its own up. Raises NodeUnreachableError.
        """
        if self._bound.get(link.address) == name:
            return
        rivals = [str(each.address) for each in self.links if each.claimed_name in ("", name)]
        address, word, now = str(link.address), link.claimed_limit, self._store.now()

        def bind(connection: "node_rows.Connection") -> tuple[str, int | None, bool]:
            holder = node_rows.bind_address(connection, name, address, rivals, now)
            limit = node_rows.note_limit(connection, name, word) if holder == address else 0
            return holder, limit, any(node.max_people for node in node_rows.list_nodes(connection))

        try:
            holder, limit, has_limits = await self._store.transact(bind, alone="nodes")
        except StateError as error:
            raise NodeUnreachableError(f"the node at {link.address} can't be checked: {error}") from None
        if holder != str(link.address):
            raise NodeUnreachableError(
                f"the node at {link.address} is refused: it says that it is {name}, which is at {holder}; if {name} "
                f"has moved, remove --node {holder}"
            )
        self._bound[link.address] = name
        if limit and not 0 < word <= limit:
            log.warning(
                f"the node {name} says that it takes {word or 'any number of'} people: it gets {limit}, until toolgate "
                "node limit changes that"
            )
        if limit is None and has_limits:
            log.warning(
                f"the node {name} gets no new people, since it says no limit and others have one: toolgate node limit "
                f"{name} N sets its number, and 0 is any number"
            )

    async def note_node(self, link: NodeLink) -> None:
        """Note the name and address of a node that answers. Raises StateError."""
        now, address = self._store.now(), str(link.address)
        await self._store.transact(
            lambda connection: node_rows.note_node(connection, link.name, address, now), alone=None
        )

    def _note(self, principal: str, name: str) -> None:
        self._refusals.pop(principal, None)
        while len(self._names) >= MAX_KNOWN:
            del self._names[next(iter(self._names))]
        self._names[principal] = name

    async def _choose(self, principal: str) -> str:
        """Return the name of the node with the fewest people. A node that the operator lets adopt people comes first if
        it has files of the principal. What others say does not count, as a node can lie."""
        links = [link for link in self.links if link.name and not link.is_away]
        adopting = await self._store.read(node_rows.list_adopting)
        found = await asyncio.gather(*(_has_files(link, principal, counts=link.name in adopting) for link in links))
        answers = {link.name: has_files for link, has_files in zip(links, found, strict=True) if has_files is not None}
        if not answers:
            raise WorkspaceUnreachableError(f"no node answers that could take your workspace: {NOTHING}")
        words = {link.name: link.claimed_limit for link in links}
        place = partial(node_rows.place, principal=principal, now=self._store.now(), limits=words)
        holders = sorted(name for name, has_files in answers.items() if has_files)

        def choose(connection: "node_rows.Connection") -> str | None:
            adopted = place(connection, names=holders, has_files=True) if holders else None
            return adopted or place(connection, names=sorted(answers), has_files=False)

        name = await self._store.transact(choose, alone="nodes")
        if name is None:
            raise ToolError(f"the nodes that answer take no new people: {NOTHING}; the operator can change that")
        return name


async def _has_files(link: NodeLink, principal: str, *, counts: bool) -> bool | None:
    """Return whether the node says that it has files of the principal, False if its word does not count, or None if it
    does not answer."""
    try:
        has_files = await NodeRequests.create(link, principal).has_files()
    except ToolError:
        return None
    return has_files and counts
