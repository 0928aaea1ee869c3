"""Read a principal's tasks, plans and callbacks for the first page, and stop them.

Every id is looked up among the principal's own objects only.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from toolgate.server.base.reports.health import PartHealth, ServerHealth
from toolgate.server.base.reports.page_part import PagePart, PartRows
from toolgate.server.calls.display import AnsiStripper, strip_ansi
from toolgate.server.calls.policy.call_policy import CallPolicy
from toolgate.server.calls.recent_calls import MAX_CALLS, CallFeed, RecentCall
from toolgate.server.protocol.session import Session
from toolgate.server.state.audit.entry import EntryData
from toolgate.server.state.audit.store import EntryReader
from toolgate.server.state.rows import plans
from toolgate.server.state.rows.callback_timer import CallbackTimer
from toolgate.server.state.rows.callbacks import CallbackStore
from toolgate.server.state.rows.todos import TodoOutline, TodoStore
from toolgate.server.state.store import Store
from toolgate.tools.api.context.services import Plan, Services
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.output.run_record import Run
from toolgate.tools.workspace.workspace import Workspace, WorkspaceUnreachableError
from toolgate.tools.workspace.workspaces import Workspaces

if TYPE_CHECKING:
    from toolgate.server.calls.policy.remembered_approvals import Duration
    from toolgate.server.protocol.session import ApprovalRequest
    from toolgate.server.state.rows.approvals import StandingApproval

MAX_ENDED = 20  # commands shown that have ended; those that run are all shown, at most 64
MAX_FOLLOWED = 20  # running commands whose output is sent as it comes; that of others comes with the next update
MAX_TASKS = 30  # tasks shown, open first
MAX_STEPS = 20  # steps shown of each
MAX_LINES = 50  # entries of the audit log
AUDIT_CACHE_TIME = 3.0  # seconds that entries are cached: reading them costs more than the rest of the page
TAIL = 2_000  # bytes of each background task's output in the page itself
CHUNK = 16 * 2**10  # bytes of output in one piece; older output is left out
PACE = 0.3  # seconds between two pieces of output: people read no faster
OUTPUT_WAIT = 600.0  # seconds: the longest wait for output
RETRY = 2.0  # seconds between two tries to read output from a node that can't be reached
UNREACHABLE = "The machine that runs your commands can’t be reached. They may still be running."  # for people


class RunsUnreachableError(Exception):
    """Background tasks can't be reached now; the text says why."""


class ShownRun(msgspec.Struct, frozen=True):
    """A background task, with the end of its output. `is_followed`: new output is sent as it comes."""

    run: Run
    output: str
    is_followed: bool = False

    @property
    def is_running(self) -> bool:
        return self.run.status == "running"

    @property
    def seconds(self) -> float | None:
        """How long it ran, or until when a lost one was seen; None where that is not known."""
        run = self.run
        if run.ended is None or (run.status == "lost" and run.ended <= run.started):
            return None
        return run.ended - run.started


class ShownPlan(msgspec.Struct, frozen=True):
    """An active plan. `client` is that of its session, "" for the principal's own plan; `since` is in seconds since the
    epoch."""

    client: str
    goal: str
    file: str
    since: float


class ShownCallback(msgspec.Struct, frozen=True):
    """`next` is in seconds since the epoch, `every` in seconds; `repeats_left` is -1 if it never ends."""

    slot: int
    message: str
    every: int
    next: float
    repeats_left: int


class Activity(msgspec.Struct, frozen=True):
    """What a principal has at one moment. `runs_fault` is a sentence: why there are no runs, if they can't be read.
    `more_runs` and `more_tasks` count those left out. `added`: the rows of parts that features add, by their names."""

    calls: list[RecentCall]
    runs: list[ShownRun] = msgspec.field(default_factory=list[ShownRun])
    runs_fault: str = ""
    more_runs: int = 0
    tasks: list[TodoOutline] = msgspec.field(default_factory=list[TodoOutline])
    more_tasks: int = 0
    plans: list[ShownPlan] = msgspec.field(default_factory=list[ShownPlan])
    callbacks: list[ShownCallback] = msgspec.field(default_factory=list[ShownCallback])
    added: Mapping[str, PartRows] = {}

    @property
    def running_count(self) -> int:
        return sum(shown.is_running for shown in self.runs)

    @property
    def may_lack_calls(self) -> bool:
        """Whether there may have been earlier calls: only so many are kept."""
        return len(self.calls) >= MAX_CALLS

    @property
    def clients(self) -> set[str]:
        """The clients that calls, plans and added parts name."""
        named = {each.client for each in self.calls} | {each.client for each in self.plans}
        return named.union(*(part.clients for part in self.added.values()))

    @property
    def grants(self) -> set[str]:
        """The grants that added parts name; each leads to a client."""
        return set[str]().union(*(part.grants for part in self.added.values()))


class Dashboard:
    """Read and act for one principal.

    peek_services: the services of a session that has used some
    own_entries: None if calls are not recorded
    parts: what this server uses elsewhere
    page_parts: what features add to the page
    """

    def __init__(
        self,
        peek_services: Callable[[Session], Services | None],
        policy: CallPolicy,
        store: Store,
        clock: CallbackTimer,
        workspaces: Workspaces,
        recent_calls: CallFeed,
        own_entries: EntryReader | None,
        parts: Sequence[Callable[[], PartHealth]] = (),
        page_parts: Sequence[PagePart] = (),
    ) -> None:
        self.recent_calls = recent_calls
        self.page_parts = page_parts
        self._peek_services = peek_services
        self._policy = policy
        self._store = store
        self._clock = clock
        self._workspaces = workspaces
        self._own_entries = own_entries
        self._parts = parts
        self._reading = asyncio.Lock()  # one reader of the audit log at a time: each one blocks its writers
        self._entries: dict[str, tuple[float, list[EntryData]]] = {}  # by principal: time read, entries

    @property
    def has_audit_log(self) -> bool:
        return self._own_entries is not None

    @property
    def sandbox_level(self) -> str:
        return self._workspaces.level

    def read_health(self, *, is_ending: bool) -> ServerHealth:
        return ServerHealth(is_ending, self.sandbox_level, [read() for read in self._parts])

    async def read(self, principal: str, sessions: Iterable[Session], *, is_live: bool = False) -> Activity:
        """Return a snapshot of what `principal` has; `sessions` are theirs. With `is_live` the output of running
        commands that are followed is left out: it comes by itself. Raises StateError."""
        todos = TodoStore(self._store, principal, "")
        tasks, all_tasks = await todos.list_first(MAX_TASKS, MAX_STEPS) if await todos.may_exist() else ([], 0)
        now = time.time()
        callbacks = [
            ShownCallback(held.id, held.message, held.delay, now + held.fires_in_ms / 1000, held.repeats_left)
            for held in await self._callbacks(principal).list()
        ]
        runs, more_runs, runs_fault = list[ShownRun](), 0, ""
        try:
            runs, more_runs = await self._runs(principal, is_live=is_live)
        except WorkspaceUnreachableError:
            runs_fault = UNREACHABLE
        except ToolError as error:
            runs_fault = f"They can’t be shown now: {error.text}."
        return Activity(
            calls=self.recent_calls.newest(principal),
            runs=runs,
            runs_fault=runs_fault,
            more_runs=more_runs,
            tasks=tasks,
            more_tasks=all_tasks - len(tasks),
            plans=[plan async for plan in self._plans(principal, sessions)],
            callbacks=callbacks,
            added={part.name: await part.read(principal) for part in self.page_parts},
        )

    async def audit_entries(self, principal: str) -> list[EntryData]:
        """Return the principal's newest entries in the audit log. Raises OSError."""
        if self._own_entries is None:
            return []
        async with self._reading:
            old = time.monotonic() - AUDIT_CACHE_TIME
            self._entries = {name: row for name, row in self._entries.items() if row[0] > old}
            if principal not in self._entries:
                lines = await self._own_entries.read(principal, MAX_LINES)
                self._entries[principal] = (time.monotonic(), lines)
            return self._entries[principal][1]

    async def stop_run(self, principal: str, id: str) -> bool | None:
        """Stop a background task with all its processes. Return whether it has ended; None if there is no such task.
        Raises RunsUnreachableError."""
        workspace, number = self._workspaces.find_recorded(principal), _parse_id(id)
        if workspace is None or number is None:
            return None
        try:
            if not (await workspace.run(number)).background:
                return None
            return (await workspace.kill(number)).status != "running"
        except KeyError:
            return None
        except ToolError as error:
            raise RunsUnreachableError(error.text) from None

    async def cancel_callback(self, principal: str, slot: str) -> bool:
        """Cancel a callback, and return whether it existed. Raises StateError."""
        number = _parse_id(slot)
        if number is None:
            return False
        try:
            await self._callbacks(principal).cancel(number)
        except KeyError:
            return False
        return True

    async def remember_approval(
        self, principal: str, approval: "ApprovalRequest", client: str, duration: "Duration"
    ) -> None:
        """Approve calls like this one for a session, or always. Raises StateError."""
        if (remembered := self._policy.remembered) is not None:
            await remembered.add(principal, approval, client, duration)

    async def list_approvals(self, principal: str) -> "list[StandingApproval]":
        """Return what the person always approves. Raises StateError."""
        remembered = self._policy.remembered
        return await remembered.list_standing(principal) if remembered is not None else []

    async def end_approval(self, principal: str, id: str) -> bool:
        """End an approval for good, and return whether it existed. Raises StateError."""
        remembered = self._policy.remembered
        return remembered is not None and await remembered.end(principal, id)

    async def output(self, principal: str, id: int) -> AsyncIterator[str]:
        """Yield the end of a background task's output as plain text, then new output until the task ends."""
        workspace = self._workspaces.find_recorded(principal)
        offset, text = -1, AnsiStripper()
        while workspace is not None:
            try:
                if offset >= 0:
                    await workspace.wait_output(id, offset, OUTPUT_WAIT, whole=True)
                run = await workspace.run(id)
                is_over = run.status != "running"
                size = await workspace.size(id)
                begin = max(offset, size - (TAIL if offset < 0 else CHUNK), 0)
                data = await workspace.read(id, begin, CHUNK)
            except KeyError:
                return
            except ToolError:
                await asyncio.sleep(RETRY)
                continue
            if begin > max(offset, 0):
                text = AnsiStripper()
            yield _omission_note(begin - max(offset, 0)) + text.feed(data, final=is_over)
            offset = begin + len(data)
            if is_over and offset >= size:
                return
            await asyncio.sleep(PACE)

    def _callbacks(self, principal: str) -> CallbackStore:
        return CallbackStore(self._store, self._clock, principal, "")

    async def _runs(self, principal: str, *, is_live: bool) -> tuple[list[ShownRun], int]:
        """Return all running commands and the newest that have ended, and the number of those left out."""
        workspace = self._workspaces.find_recorded(principal)
        if workspace is None:  # nothing has run, and opening a workspace would make one
            return [], 0
        try:
            runs = sorted(await workspace.list(), key=lambda run: -run.id)
        except KeyError:  # likewise at its node
            return [], 0
        running = [run for run in runs if run.status == "running"]
        ended = [run for run in runs if run.status != "running"]
        shown: list[ShownRun] = []
        for place, run in enumerate([*running, *ended[:MAX_ENDED]]):
            is_followed = run.status == "running" and place < MAX_FOLLOWED
            try:
                output = "" if is_live and is_followed else await _read_tail(workspace, run.id)
            except KeyError:
                continue
            shown.append(ShownRun(run, output, is_followed))
        return shown, max(0, len(ended) - MAX_ENDED)

    async def _plans(self, principal: str, sessions: Iterable[Session]) -> AsyncIterator[ShownPlan]:
        own: list[tuple[str, Plan]] = [("", plans.PlanStore(self._store, principal, ""))]
        own += [(held.client, lent.plan) for held in sessions if (lent := self._peek_services(held)) is not None]
        for client, plan in own:
            state = await plan.state()
            if state.active:
                since = state.started_at.timestamp() if state.started_at is not None else 0.0
                yield ShownPlan(client, state.goal, state.plan_file or "", since)


async def _read_tail(workspace: Workspace, id: int) -> str:
    """Return the end of a command's output as plain text. Raises KeyError."""
    size = await workspace.size(id)
    data = await workspace.read(id, max(0, size - TAIL), TAIL)
    return _omission_note(max(0, size - TAIL)) + strip_ansi(data)


def _omission_note(count: int) -> str:
    return f"[… {count:,} bytes left out …]\n" if count else ""


def _parse_id(id: str) -> int | None:
    return int(id) if id.isascii() and id.isdigit() and len(id) < 16 else None
