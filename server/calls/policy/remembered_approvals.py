"""Remember what a person has approved for longer than one call: for a session in memory, or on the bus of several
replicas; for good in the state.

An approval covers one tool with the same arguments, in the same folder, at the same sandbox level and under the rule
that asked (`ApprovalRequest`). It is looked up only for a call that would be asked about, so it never
widens what --deny and other rules say.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal

from toolgate.server.base.bus.memory_keys import MemoryKeys
from toolgate.server.calls.policy.session_approvals import SessionApprovals
from toolgate.server.state import flags
from toolgate.server.state.rows import approvals as approval_rows

if TYPE_CHECKING:
    from toolgate.server.base.bus.bus import Keys
    from toolgate.server.protocol.session import ApprovalRequest
    from toolgate.server.state.rows.approvals import StandingApproval
    from toolgate.server.state.store import Store

Duration = Literal["session", "always"]

MAX_FOR_GOOD = 256  # of each principal, in the state: a list that a person can still read

log = logging.getLogger("toolgate.approvals")


async def _name_itself(principal: str) -> str:
    return principal


class RememberedApprovals:
    """The approvals of all people. `keys` have those for a session; None: keys in memory. `find_label` names a
    principal in the log; by default it is its own name."""

    def __init__(
        self,
        store: "Store",
        now: Callable[[], float] | None = None,
        keys: "Keys | None" = None,
        find_label: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        self._store = store
        self._find_label = find_label or _name_itself
        self._now = now or store.now
        self._in_sessions = SessionApprovals(MemoryKeys() if keys is None else keys)

    async def find(self, principal: str, request: "ApprovalRequest") -> Duration | None:
        """Return for how long the person has approved this already, or None. Raises StateError."""
        if await self._in_sessions.has(principal, request, self._now()):
            return "session"
        if not self._store.has_flag(flags.APPROVALS, principal):
            return None
        now = self._now()
        used = await self._store.transact(
            lambda rows: approval_rows.mark_used(rows, principal, request.key, now), alone=None
        )
        return "always" if used else None

    async def add(self, principal: str, request: "ApprovalRequest", client: str, duration: Duration) -> None:
        """Remember an approval. Raises StateError."""
        who, tool = await self._find_label(principal), request.tool
        log.info("%s approves %s for %s, as asked by --approve %s", who, tool, duration, request.rule)
        if duration == "session":
            await self._in_sessions.add(principal, request, self._now())
            return

        def write(connection: "approval_rows.Connection") -> None:
            shown = request.arguments if request.command is None else request.command
            row = {"tool": request.tool, "shown": shown, "folder": request.folder, "rule": request.rule}
            approval_rows.add(connection, principal, request.key, client=client, made_at=self._now(), **row)
            approval_rows.trim(connection, principal, MAX_FOR_GOOD)
            self._store.set_flag(flags.APPROVALS, principal, True)

        await self._store.transact(write, alone=("approvals", principal))

    async def list_standing(self, principal: str) -> "list[StandingApproval]":
        """Return the approvals for good, the newest first. Raises StateError."""
        if not self._store.has_flag(flags.APPROVALS, principal):
            return []
        return await self._store.read(lambda connection: approval_rows.list_all(connection, principal))

    async def end(self, principal: str, id: str) -> bool:
        """End an approval for good, and return whether it existed. Raises StateError."""
        if not self._store.has_flag(flags.APPROVALS, principal):
            return False
        is_ended = await self._store.transact(
            lambda connection: approval_rows.remove(connection, principal, id), alone=None
        )
        if is_ended:
            log.info("%s ends the approval %s", await self._find_label(principal), id)
        await self._store.clear_flag_unless(
            flags.APPROVALS,
            principal,
            lambda connection: bool(approval_rows.list_all(connection, principal)),
            alone=("approvals", principal),
        )
        return is_ended

    async def end_all(self, principal: str) -> None:
        """End all approvals of a person who is gone. Raises StateError."""
        await self._in_sessions.end_all(principal)
        if self._store.has_flag(flags.APPROVALS, principal):
            await self._store.transact(
                lambda connection: approval_rows.trim(connection, principal, 0), alone=("approvals", principal)
            )
            await self._store.clear_flag_unless(
                flags.APPROVALS,
                principal,
                lambda connection: bool(approval_rows.list_all(connection, principal)),
                alone=("approvals", principal),
            )
