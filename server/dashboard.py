"""What a principal has going on here, for the page that shows it, and what may be done about it there. Knows
workspaces, tasks, plans and callbacks; knows nothing of pages, nor of who may look.

Every id is looked for among the principal's own things: there is no other way in.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from toolgate.server.calls.ansi import AnsiStripper, strip_ansi
from toolgate.server.protocol.session import Session
from toolgate.server.server import Server
from toolgate.server.state import plans
from toolgate.server.state.callback_timer import CallbackTimer
from toolgate.server.state.callbacks import CallbackStore
from toolgate.server.state.store import Store
from toolgate.server.state.todos import TodoOutline, TodoStore
from toolgate.server.telemetry.audit.own_entries import EntryData, OwnEntries
from toolgate.server.telemetry.recent_calls import RecentCall, RecentCalls
from toolgate.server.workspaces.workspaces import Workspaces
from toolgate.tools.api.context import Plan
from toolgate.tools.workspace.spool import Run
from toolgate.tools.workspace.workspace import Workspace

MAX_RUNS = 20  # background tasks that are shown, what runs first
MAX_TASKS = 30  # tasks that are shown, the open ones first
MAX_STEPS = 20  # of each of these
MAX_LINES = 50  # of the audit log
AUDIT_CACHE_TIME = 3.0  # seconds that these are good for: to read them costs more than the rest of the page
TAIL = 2_000  # bytes of output that a page begins with, of each background task
CHUNK = 16 * 2**10  # bytes of output given at once; what is farther behind is left out
PACE = 0.3  # seconds between two pieces of output: a page is read, not measured
OUTPUT_WAIT = 600.0  # seconds: longest wait for output


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A background task, with the end of its output."""

    run: Run
    output: str

    @property
    def running(self) -> bool:
        return self.run.status == "running"


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """`client` is whose session it is of, "" where it is the principal's; `since` in seconds since the epoch."""

    client: str
    goal: str
    file: str
    since: float


@dataclass(frozen=True, slots=True)
class ShownCallback:
    """`next` is in seconds since the epoch, `every` in seconds; `left` firings, -1 for ever."""

    slot: int
    message: str
    every: int
    next: float
    left: int


@dataclass(frozen=True, slots=True)
class Activity:
    """All of it, in one moment. `more_…` counts what is left out."""

    calls: list[RecentCall]
    runs: list[ShownRun] = field(default_factory=list[ShownRun])
    tasks: list[TodoOutline] = field(default_factory=list[TodoOutline])
    more_tasks: int = 0
    plans: list[ShownPlan] = field(default_factory=list[ShownPlan])
    callbacks: list[ShownCallback] = field(default_factory=list[ShownCallback])


class Dashboard:
    """`trail` is None where calls are not recorded."""

    def __init__(
        self,
        server: Server,
        store: Store,
        clock: CallbackTimer,
        workspaces: Workspaces,
        recent_calls: RecentCalls,
        own_entries: OwnEntries | None,
    ) -> None:
        self.recent_calls = recent_calls
        self._server = server
        self._store = store
        self._clock = clock
        self._workspaces = workspaces
        self._trail = own_entries
        self._reading = asyncio.Lock()  # of the trail: one reader at a time, since each holds up who writes it
        self._read: dict[str, tuple[float, list[EntryData]]] = {}  # principal → when, in monotonic seconds, and what

    @property
    def has_audit_log(self) -> bool:
        return self._trail is not None

    async def read(self, principal: str, sessions: Iterable[Session]) -> Activity:
        """What is going on for `principal`, whose open sessions these are. Raises StateError."""
        kept = TodoStore(self._store, principal, "")
        tasks, all_tasks = await kept.list_first(MAX_TASKS, MAX_STEPS) if await kept.kept() else ([], 0)
        now = time.time()
        callbacks = [
            ShownCallback(held.id, held.message, held.delay, now + held.fires_in_ms / 1000, held.repeats_left)
            for held in await self._callbacks(principal).list()
        ]
        return Activity(
            calls=self.recent_calls.newest(principal),
            runs=await self._runs(principal),
            tasks=tasks,
            more_tasks=all_tasks - len(tasks),
            plans=[plan async for plan in self._plans(principal, sessions)],
            callbacks=callbacks,
        )

    async def audit_entries(self, principal: str) -> list[EntryData]:
        """The newest lines of the audit log about the principal. Raises OSError."""
        if self._trail is None:
            return []
        async with self._reading:
            old = time.monotonic() - AUDIT_CACHE_TIME
            self._read = {who: held for who, held in self._read.items() if held[0] > old}
            if principal not in self._read:
                lines = await asyncio.to_thread(self._trail.newest, principal, MAX_LINES)
                self._read[principal] = (time.monotonic(), lines)
            return self._read[principal][1]

    async def stop_run(self, principal: str, id: str) -> bool | None:
        """End a background task, the whole tree: has it ended? None where there is no such task."""
        workspace, number = self._workspaces.find(principal), _parse_id(id)
        if workspace is None or number is None:
            return None
        try:
            if not (await workspace.run(number)).background:
                return None
            return (await workspace.kill(number)).status != "running"
        except KeyError:
            return None

    async def cancel_callback(self, principal: str, slot: str) -> bool:
        """Cancel a callback: was there one? Raises StateError."""
        number = _parse_id(slot)
        if number is None:
            return False
        try:
            await self._callbacks(principal).cancel(number)
        except KeyError:
            return False
        return True

    async def running(self, principal: str) -> list[int]:
        """The ids of the background tasks that run, of those shown."""
        workspace = self._workspaces.find(principal)
        return [] if workspace is None else [run.id for run in await _shown_runs(workspace) if run.status == "running"]

    async def output(self, principal: str, id: int) -> AsyncIterator[str]:
        """The output of a background task as it comes, plain, until it ends: first the end of what there is."""
        workspace = self._workspaces.find(principal)
        offset, text = -1, AnsiStripper()
        while workspace is not None:
            try:
                run = await workspace.run(id)
                if offset >= 0:
                    await workspace.wait_output(id, offset, OUTPUT_WAIT, whole=True)
                is_over = run.status != "running"
                size = await workspace.size(id)
                begin = max(offset, size - (TAIL if offset < 0 else CHUNK), 0)
                data = await workspace.read(id, begin, CHUNK)
            except KeyError:
                return
            if begin > max(offset, 0):
                text = AnsiStripper()
            yield _omission_note(begin - max(offset, 0)) + text.feed(data, final=is_over)
            offset = begin + len(data)
            if is_over and offset >= size:
                return
            await asyncio.sleep(PACE)

    def _callbacks(self, principal: str) -> CallbackStore:
        return CallbackStore(self._store, self._clock, principal, "")

    async def _runs(self, principal: str) -> list[ShownRun]:
        workspace = self._workspaces.find(principal)
        if workspace is None:  # nothing has run since the server began, and to look would take a workspace into use
            return []
        shown: list[ShownRun] = []
        for run in await _shown_runs(workspace):
            try:
                size = await workspace.size(run.id)
                data = await workspace.read(run.id, max(0, size - TAIL), TAIL)
            except KeyError:
                continue
            shown.append(ShownRun(run, _omission_note(max(0, size - TAIL)) + strip_ansi(data)))
        return shown

    async def _plans(self, principal: str, sessions: Iterable[Session]) -> AsyncIterator[ShownPlan]:
        own: list[tuple[str, Plan]] = [("", plans.PlanStore(self._store, principal, ""))]
        own += [
            (held.client, lent.plan) for held in sessions if (lent := self._server.peek_belongings(held)) is not None
        ]
        for client, plan in own:
            state = await plan.state()
            if state.active:
                since = state.started_at.timestamp() if state.started_at is not None else 0.0
                yield ShownPlan(client, state.goal, state.plan_file or "", since)


def _omission_note(count: int) -> str:
    return f"[… {count:,} bytes before this are left out …]\n" if count else ""


def _parse_id(id: str) -> int | None:
    return int(id) if id.isascii() and id.isdigit() and len(id) < 16 else None


async def _shown_runs(workspace: Workspace) -> list[Run]:
    """What runs first, then what began last."""
    runs = sorted(await workspace.list(), key=lambda run: (run.status != "running", -run.id))
    return runs[:MAX_RUNS]
