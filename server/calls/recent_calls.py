"""Keep each principal's last calls for the first page, without arguments: they may hold secrets."""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgspec

from toolgate.server.base.task import StoredTask
from toolgate.server.base.watchers import Watchers
from toolgate.server.calls.observers import CallEnd
from toolgate.server.calls.tasks import tool_of
from toolgate.server.protocol.messages import Request
from toolgate.server.protocol.request_meta import client_name
from toolgate.server.protocol.session import Call

MAX_CALLS = 50  # of each principal: as many as a person reads
MAX_PRINCIPALS = 1_000  # principals in memory, some 10 MiB; the one idle for longest is dropped
MAX_NAME = 255  # characters of the names of clients and tools, which may be any text


class RecentCall(msgspec.Struct, eq=False):
    """A call. `outcome` is that of `observers.CallEnd`, "" while it runs; `task` is the task it became, if any. `began`
    is in seconds since the epoch. `call` is the call itself, while it runs.

    A call that ended with a question on the page has the outcome "waiting", and later "allowed", "answered",
    "declined" or "expired".
    """

    id: int
    tool: str
    client: str
    began: float
    outcome: str = ""
    seconds: float = 0.0
    task: str | None = None
    call: Call | None = None

    @property
    def is_waiting(self) -> bool:
        """Return whether it waits for an answer on the page."""
        return self.outcome == "waiting" or (self.call is not None and self.call.is_waiting)


class CallFeed(Protocol):
    """The last calls that a page shows."""

    def newest(self, principal: str) -> list[RecentCall]:
        """Return the calls of the principal, the newest first."""
        ...

    def watch(self, principal: str, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` whenever a call begins or ends. Return the function that ends this."""
        ...


class RecentCalls:
    """The last calls of this server: a `CallFeed`, which observes them."""

    prepare = None

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._last_id = 0
        self._calls: OrderedDict[str, deque[RecentCall]] = OrderedDict()
        self._watchers = Watchers()

    def newest(self, principal: str) -> list[RecentCall]:
        return list(reversed(self._calls.get(principal, ())))

    def watch(self, principal: str, notify: Callable[[], None]) -> Callable[[], None]:
        return self._watchers.watch(principal, notify)

    def call_started(self, call: Call) -> RecentCall:
        session, params = call.session, call.params
        client = session.client or client_name(params.get("_meta"))
        return self._add(session.principal, client, params.get("name"), call)

    def call_ended(self, call: Call, begun: RecentCall | None, end: CallEnd) -> None:
        if begun is None:
            return
        begun.seconds = end.seconds
        if end.outcome == "task":
            begun.task = end.task
        else:
            begun.outcome, begun.call = end.outcome, None
        # ok: the tool tells that nobody has answered yet
        if call.page_answers and begun.outcome in ("asked", "ok") and call.is_waiting:
            begun.outcome = "waiting"
            accepted = "allowed" if call.decision == "asked" else "answered"
            for answer in call.page_answers:
                answer.add_done_callback(partial(self._question_ended, begun, call.session.principal, accepted))
        if self._watchers.by_principal:
            self._watchers.notify(call.session.principal)

    def _question_ended(
        self, begun: RecentCall, principal: str, accepted: str, answer: "asyncio.Future[dict[str, Any] | None]"
    ) -> None:
        """Note how the question ended that the call had left on the page."""
        result = answer.result()
        begun.outcome = "expired" if result is None else accepted if result["action"] == "accept" else "declined"
        self._watchers.notify(principal)

    def task_lost(self, kept: StoredTask) -> None:
        seen = self._add(kept.principal, "", tool_of(kept.id))
        seen.task, seen.outcome, seen.began = kept.id, "fault", kept.created

    def scope_missing(self, principal: str, client: str, request: Request) -> None:
        self._add(principal, client, request.params.get("name")).outcome = "refused"

    def _add(self, principal: str, client: str, tool: Any, call: Call | None = None) -> RecentCall:
        self._last_id += 1
        named = tool if isinstance(tool, str) else ""
        seen = RecentCall(self._last_id, named[:MAX_NAME], client[:MAX_NAME], self._now(), call=call)
        calls = self._calls.get(principal)
        if calls is None:
            calls = self._calls[principal] = deque(maxlen=MAX_CALLS)
            if len(self._calls) > MAX_PRINCIPALS:
                self._calls.popitem(last=False)
        else:
            self._calls.move_to_end(principal)
        calls.append(seen)
        if self._watchers.by_principal:
            self._watchers.notify(principal)
        return seen
