"""Move a principal's workspace from its node to another, in steps that can end anywhere and be repeated.

The node before packs it and refuses calls; the pieces go through this process; the next node unpacks them aside; then
the row in the database changes, and the copy before is removed. `node/moves.py` has the nodes' side.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import msgspec

from toolgate.server.features.nodes import rows as node_rows
from toolgate.server.features.nodes.gateway.link import NodeLink
from toolgate.server.features.nodes.gateway.remote_methods import NodeRequests
from toolgate.server.state.store import Store
from toolgate.tools.api.errors import ToolError

PIECE = 4 * 2**20  # bytes


class FinishedMove(msgspec.Struct, frozen=True):
    """A move that is done. `source` is "" if the workspace was there before. `size` is in bytes, packed; `remains` says
    where a copy could not be removed, and why."""

    source: str
    size: int
    omission: str
    remains: list[str]


class MoveError(Exception):
    """The workspace was not moved; the text says why."""


async def move_workspace(store: Store, links: Sequence[NodeLink], principal: str, target: NodeLink) -> FinishedMove:
    """Move the workspace to the node of `target`; finish a move that ended before its end. Raises MoveError, and
    StateError."""
    claimed = await store.transact(
        partial(node_rows.claim_placement, principal=principal, now=store.now()), alone="nodes"
    )
    if claimed is None:
        raise MoveError(f"{principal} is on no node yet: its first call chooses one")
    name, claim = claimed
    size, omission = 0, ""
    if name != target.name:
        source = next((link for link in links if link.name == name), None)
        if source is None:
            raise MoveError(f"{principal} is on the node {name}, which does not answer: nothing was done")
        size, omission = await _carry(source, target, principal)
        if not await store.transact(
            partial(node_rows.move_placement, principal=principal, target=target.name, claim=claim), alone="nodes"
        ):
            raise MoveError("another move of it began meanwhile: repeat the one that you want")
    try:
        await NodeRequests.create(target, principal).settle(is_final=True, omission=omission)
    except ToolError as error:
        raise MoveError(f"{principal} is on the node {target.name} now, but: {error.text}; repeat this") from None
    others = [link for link in links if link is not target]
    reasons = await asyncio.gather(*(_remove_copy(link, target, principal) for link in others))
    source_name = "" if name == target.name else name
    return FinishedMove(source_name, size, omission, [reason for reason in reasons if reason])


async def _carry(source: NodeLink, target: NodeLink, principal: str) -> tuple[int, str]:
    """Copy the workspace to the target, where it waits for the change of the row. Return its size and omission."""
    step, begun = f"the node {source.name} does not give it away", list[NodeRequests]()
    giver, taker = NodeRequests.create(source, principal), NodeRequests.create(target, principal)
    try:
        packed = await giver.begin_move()
        if packed.went_to:
            if packed.went_to != target.name:
                raise MoveError(f"its files left for the node {packed.went_to} by an earlier move: move it there")
            return 0, ""
        begun.append(giver)
        step = f"the node {target.name} does not take it"
        await taker.open_arrival()
        begun.append(taker)
        for offset in range(0, packed.size, PIECE):
            await taker.add_piece(offset, await giver.read_packed(offset, PIECE))
        await taker.unpack_arrival(packed.digest)
        step = f"the node {source.name} does not give it away"
        await giver.commit_move(target.name)
    except BaseException as error:
        for node in begun:
            with suppress(ToolError):
                await asyncio.shield(node.cancel_move())
        if isinstance(error, ToolError):
            raise MoveError(f"{principal} stays where it is: {step}: {error.text}") from None
        raise
    return packed.size, packed.omission


async def _remove_copy(link: NodeLink, target: NodeLink, principal: str) -> str:
    """Remove what a node has of the workspace and does not use. Return why that fails, or ""."""
    try:
        await NodeRequests.create(link, principal).remove_copy(target.name)
    except ToolError as error:
        return f"{link.name}: {error.text}"
    return ""
