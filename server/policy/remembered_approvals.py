"""Remember what a person has approved for longer than one call: for a session in memory, for good in the state.

An approval covers one tool with the same arguments, in the same folder, at the same sandbox level and under the rule
that asked (`ApprovalRequest`). It is looked up only for a call that would be asked about, so it never
widens what --deny and other rules say.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from toolgate.server.state import approval_rows

if TYPE_CHECKING:
    from toolgate.server.protocol.session import ApprovalRequest
    from toolgate.server.state.approval_rows import StandingApproval
    from toolgate.server.state.store import Store

Duration = Literal["session", "always"]

FLAG = "approvals"  # flag: a principal has approvals for good
SESSION_LIFETIME = 12 * 3600.0  # seconds: a working day; a client without sessions has no end of its own
MAX_IN_SESSIONS = 256  # of each principal, in memory: one more drops the oldest
MAX_FOR_GOOD = 256  # of each principal, in the state: a list that a person can still read

log = logging.getLogger("toolgate.approvals")


class RememberedApprovals:
    def __init__(self, store: "Store", now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now
        self._in_sessions: dict[str, OrderedDict[tuple[str, str], float]] = {}  # principal → (session, key) → expiry

    async def find(self, principal: str, request: "ApprovalRequest") -> Duration | None:
        """Return for how long the person has approved this already, or None. Raises StateError."""
        own = self._in_sessions.get(principal)
        if own is not None and self._now() < own.get((request.session, request.key), 0.0):
            return "session"
        if not self._store.has_flag(FLAG, principal):
            return None
        now = self._now()
        used = await self._store.transact(lambda rows: approval_rows.mark_used(rows, principal, request.key, now))
        return "always" if used else None

    async def add(self, principal: str, request: "ApprovalRequest", client: str, duration: Duration) -> None:
        """Remember an approval. Raises StateError."""
        log.info("%s approves %s for %s, as asked by --approve %s", principal, request.tool, duration, request.rule)
        if duration == "session":
            own = self._in_sessions.setdefault(principal, OrderedDict())
            own[request.session, request.key] = self._now() + SESSION_LIFETIME
            own.move_to_end((request.session, request.key))  # it may be a renewal
            while len(own) > MAX_IN_SESSIONS:
                own.popitem(last=False)
            return

        def write(connection: "approval_rows.Connection") -> None:
            shown = request.arguments if request.command is None else request.command
            row = {"tool": request.tool, "shown": shown, "folder": request.folder, "rule": request.rule}
            approval_rows.add(connection, principal, request.key, client=client, made_at=self._now(), **row)
            approval_rows.trim(connection, principal, MAX_FOR_GOOD)
            self._store.set_flag(FLAG, principal, True)

        await self._store.transact(write)

    async def list_standing(self, principal: str) -> "list[StandingApproval]":
        """Return the approvals for good, the newest first. Raises StateError."""
        if not self._store.has_flag(FLAG, principal):
            return []
        return await self._store.transact(lambda connection: approval_rows.list_all(connection, principal))

    async def end(self, principal: str, id: str) -> bool:
        """End an approval for good, and return whether it existed. Raises StateError."""
        if not self._store.has_flag(FLAG, principal):
            return False
        is_ended = await self._store.transact(lambda connection: approval_rows.remove(connection, principal, id))
        if is_ended:
            log.info("%s ends the approval %s", principal, id)
        await self._store.clear_flag_unless(
            FLAG, principal, lambda connection: bool(approval_rows.list_all(connection, principal))
        )
        return is_ended

    async def end_all(self, principal: str) -> None:
        """End all approvals of a person who is gone. Raises StateError."""
        self._in_sessions.pop(principal, None)
        if self._store.has_flag(FLAG, principal):
            await self._store.transact(lambda connection: approval_rows.trim(connection, principal, 0))
            await self._store.clear_flag_unless(
                FLAG, principal, lambda connection: bool(approval_rows.list_all(connection, principal))
            )
