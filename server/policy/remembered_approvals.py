"""Remember what a person has approved for longer than one call: for a session in memory, or on the bus of several
replicas; for good in the state.

An approval covers one tool with the same arguments, in the same folder, at the same sandbox level and under the rule
that asked (`ApprovalRequest`). It is looked up only for a call that would be asked about, so it never
widens what --deny and other rules say.
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal, Protocol

from toolgate.server.state import flags
from toolgate.server.state.rows import approvals as approval_rows

if TYPE_CHECKING:
    from toolgate.server.protocol.session import ApprovalRequest
    from toolgate.server.state.rows.approvals import StandingApproval
    from toolgate.server.state.store import Store

Duration = Literal["session", "always"]

SESSION_LIFETIME = 12 * 3600.0  # seconds: a working day; a client without sessions has no end of its own
MAX_IN_SESSIONS = 256  # of each principal, in memory: one more drops the oldest
MAX_FOR_GOOD = 256  # of each principal, in the state: a list that a person can still read

log = logging.getLogger("toolgate.approvals")


class SessionApprovals(Protocol):
    """The approvals for a session, which is part of the request. A principal has at most `MAX_IN_SESSIONS`."""

    async def has(self, principal: str, request: "ApprovalRequest", now: float) -> bool: ...

    async def add(self, principal: str, request: "ApprovalRequest", now: float) -> None: ...

    async def end_all(self, principal: str) -> None: ...


class LocalSessionApprovals:
    """The approvals for a session, in memory."""

    def __init__(self) -> None:
        self._of: dict[str, OrderedDict[tuple[str, str], float]] = {}  # principal → (session, key) → expiry

    async def has(self, principal: str, request: "ApprovalRequest", now: float) -> bool:
        own = self._of.get(principal)
        return own is not None and now < own.get((request.session, request.key), 0.0)

    async def add(self, principal: str, request: "ApprovalRequest", now: float) -> None:
        own = self._of.setdefault(principal, OrderedDict())
        own[request.session, request.key] = now + SESSION_LIFETIME
        own.move_to_end((request.session, request.key))  # it may be a renewal
        while len(own) > MAX_IN_SESSIONS:
            own.popitem(last=False)

    async def end_all(self, principal: str) -> None:
        self._of.pop(principal, None)


async def _name_itself(principal: str) -> str:
    return principal


class RememberedApprovals:
    """The approvals of all people. `in_sessions` has those for a session; None: in memory. `find_label` names a
    principal in the log; by default it is its own name."""

    def __init__(
        self,
        store: "Store",
        now: Callable[[], float] | None = None,
        in_sessions: SessionApprovals | None = None,
        find_label: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        self._store = store
        self._find_label = find_label or _name_itself
        self._now = now or store.now
        self._in_sessions = in_sessions or LocalSessionApprovals()

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
