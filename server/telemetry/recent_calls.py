"""The last calls of each principal, as they happen. Knows calls and how they end; knows nothing of who looks on, or how
that is shown. An observer (observers.py).

Of arguments nothing is kept: they may hold secrets, and the audit log says what of them is worth keeping.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolgate.server.calls.observers import CallEnd
from toolgate.server.calls.tasks import StoredTask, tool_of
from toolgate.server.protocol.messages import Request
from toolgate.server.protocol.request_meta import client_name
from toolgate.server.protocol.session import Call

MAX_CALLS = 50  # of a principal: what a person looks through
MAX_PRINCIPALS = 1_000  # whose calls are remembered, some 10 MiB; who called longest ago gives way
MAX_NAME = 100  # characters of what a client says of itself, or of a tool that may not exist


@dataclass(eq=False, slots=True)
class RecentCall:
    """A call. `outcome` is as `observers.End` has it, "" while it is under way, as the task `task` where it became one.
    `began` is in seconds since the epoch."""

    id: int
    tool: str
    client: str
    began: float
    outcome: str = ""
    seconds: float = 0.0
    task: str | None = None


class RecentCalls:
    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._last_id = 0
        self._calls: OrderedDict[str, deque[RecentCall]] = OrderedDict()
        self._watching: dict[str, set[Callable[[], None]]] = {}

    def newest(self, principal: str) -> list[RecentCall]:
        """The newest first."""
        return list(reversed(self._calls.get(principal, ())))

    def watch(self, principal: str, tell: Callable[[], None]) -> Callable[[], None]:
        """Have `tell` called whenever a call begins or ends; what is given ends that."""
        watching = self._watching.setdefault(principal, set())
        watching.add(tell)

        def leave() -> None:
            watching.discard(tell)
            if not watching and self._watching.get(principal) is watching:
                del self._watching[principal]

        return leave

    def began(self, call: Call) -> RecentCall:
        session, params = call.session, call.params
        return self._add(session.principal, session.client or client_name(params.get("_meta")), params.get("name"))

    def ended(self, call: Call, begun: RecentCall | None, end: CallEnd) -> None:
        if begun is None:
            return
        begun.seconds = end.seconds
        if end.outcome == "task":
            begun.task = end.task
        else:
            begun.outcome = end.outcome
        self._notify(call.session.principal)

    def lost(self, kept: StoredTask) -> None:
        seen = self._add(kept.principal, "", tool_of(kept.id))
        seen.task, seen.outcome, seen.began = kept.id, "fault", kept.created

    def lacking(self, principal: str, client: str, request: Request) -> None:
        self._add(principal, client, request.params.get("name")).outcome = "refused"

    def _add(self, principal: str, client: str, tool: Any) -> RecentCall:
        self._last_id += 1
        named = tool if isinstance(tool, str) else ""
        seen = RecentCall(self._last_id, named[:MAX_NAME], client[:MAX_NAME], self._now())
        self._calls.setdefault(principal, deque(maxlen=MAX_CALLS)).append(seen)
        self._calls.move_to_end(principal)
        if len(self._calls) > MAX_PRINCIPALS:
            self._calls.popitem(last=False)
        self._notify(principal)
        return seen

    def _notify(self, principal: str) -> None:
        for tell in list(self._watching.get(principal, ())):
            tell()
