"""Hold the workspaces of all principals of a gateway, which are at nodes."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from toolgate.server.base.errors import StateError
from toolgate.server.base.principals.principal import LOCAL_NAME
from toolgate.server.base.text import escape_unprintable
from toolgate.server.base.watch import FileChanges
from toolgate.server.features.nodes.gateway.link import NodeLink, NodeUnreachableError
from toolgate.server.features.nodes.gateway.monitor import MAX_WORD, NodeMonitor
from toolgate.server.features.nodes.gateway.placement import Placement
from toolgate.server.features.nodes.gateway.remote_methods import NodeRequests
from toolgate.server.features.nodes.gateway.remote_workspace import NodeWorkspace
from toolgate.server.features.nodes.messages import TaskEnded, Welcome
from toolgate.server.features.nodes.node.people import MAX_GONE
from toolgate.server.features.nodes.pages.methods import PageMethods
from toolgate.server.features.nodes.report import NodeReport
from toolgate.server.workspaces.last_used import PRINCIPAL_NAME
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.output.run_record import TaskEnd
from toolgate.tools.workspace.workspace import Workspace
from toolgate.tools.workspace.workspaces import IsThere

REPORT_EVERY = 3_600.0  # seconds between two reports of who is gone, as a cleaner asks
LOCATE_PAUSE = 0.5  # seconds until a principal's node is looked for again
WATCHES_WITHIN = 0.05  # seconds from a subscription to the request for its watch: a later one may miss a change
NOTE_EVERY = 60.0  # seconds between two notes of a principal's calls
MAX_NOTED = 1_000  # principals whose newest note is known: of more, calls are noted again sooner
LEVELS = ("none", "uid", "bwrap")  # the weakest first

log = logging.getLogger("toolgate.node")


class RemoteWorkspaces:
    """The workspaces at the nodes of the placement's links. `file_changes` watches this machine, for skills and
    plugins. `needs_sandbox`: a node without a sandbox is refused."""

    def __init__(
        self,
        placement: Placement,
        file_changes: FileChanges,
        on_task_end: Callable[[str, TaskEnd], None],
        list_gone: Callable[[], Awaitable[Collection[str] | None]],
        *,
        needs_sandbox: bool = False,
        report_every: float = REPORT_EVERY,
    ) -> None:
        self.links = placement.links
        self._on_life: Callable[[IsThere], None] = lambda _: None
        self._placement = placement
        self._monitors = [NodeMonitor(link, placement.note_node) for link in placement.links]
        self._file_changes = file_changes
        self._on_task_end = on_task_end
        self._needs_sandbox = needs_sandbox
        # for as long as something uses them: one numbers the watches of its principal
        self._workspaces: WeakValueDictionary[str, NodeWorkspace] = WeakValueDictionary()
        self._noted: dict[str, float] = {}
        self._ends: dict[tuple[str, int, float, str], None] = {}  # the last that came
        self._notes: set[asyncio.Task[None]] = set()
        self._list_gone = list_gone
        self._report_every = report_every
        self._locating = asyncio.Lock()  # a node that sends much does not make the database busy
        for link in self.links:
            link.on_end, link.check = partial(self._take_end, link), self._check_node
            link.on_life = partial(self._note_life, link)
            if link.welcome is not None:
                self.check_welcome(link, link.welcome)

    outlive_server = True

    @property
    def level(self) -> str:
        """The weakest level of the nodes."""
        levels = [link.welcome.level for link in self.links if link.welcome is not None]
        return min(levels, key=_rank_level, default="none")

    def describe(self) -> str:
        told = [f"{link.welcome.description} at the node {link.address}" for link in self.links if link.welcome]
        return "; ".join(told)

    def get_or_open(self, principal: str) -> Workspace:
        return self._get_or_open(principal)

    def _get_or_open(self, principal: str) -> NodeWorkspace:
        found = self._workspaces.get(principal)
        if found is None:
            found = self._workspaces[principal] = NodeWorkspace.create(self._placement, principal)
        return found

    def get_pages(self, principal: str) -> PageMethods:
        """Return what reads pages at the principal's node."""
        return self._get_or_open(principal)

    def find(self, principal: str) -> Workspace | None:
        return self._observe(principal)

    def find_recorded(self, principal: str) -> Workspace | None:
        return self.find(principal)

    def _observe(self, principal: str) -> NodeWorkspace:
        """Return a workspace whose requests are no calls of the principal."""
        return NodeWorkspace.create(self._placement, principal, is_call=False)

    def sandbox_level(self, principal: str) -> str | None:
        link = self._placement.find_link(principal)
        return link.welcome.level if link is not None and link.welcome is not None else None

    def count_running(self) -> tuple[int, int]:
        loads = [monitor.load for monitor in self._monitors if monitor.load is not None]
        return sum(load.foreground for load in loads), sum(load.background for load in loads)

    def count_lost_sandboxes(self) -> int:
        return sum(monitor.load.lost_sandboxes for monitor in self._monitors if monitor.load is not None)

    def list_nodes(self) -> Sequence[NodeReport]:
        """Return what is known of the nodes."""
        return [monitor.report() for monitor in self._monitors]

    async def watch_path(self, principal: str, path: Path, since: float | None = None) -> AsyncIterator[object]:
        await self._placement.locate(principal)
        workspace = self._get_or_open(principal)
        is_there = path.is_relative_to(workspace.root)
        if is_there and since is not None and time.time() - since > WATCHES_WITHIN:
            yield None  # it may have changed, and the node's watch begins only now
        async for change in workspace.watch_path(path) if is_there else self._file_changes.follow(path, since=since):
            yield change

    def list_jobs(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        jobs = [partial(job, link) for link in self.links for job in (NodeLink.run, self._report_gone)]
        watches = {link.certificate.watch_end for link in self.links if link.certificate is not None}
        return [*jobs, *(monitor.run for monitor in self._monitors), *watches]

    async def prepare(self, principal: str, on_message: Callable[[str, str], None]) -> None:
        """Find the principal's node before a call, and note the call there, at most once a minute. A message for it
        comes by `on_message(principal, message)`. Without a node, what the call does with the workspace says why."""
        try:
            await self._placement.locate(principal)
        except ToolError as error:
            log.debug("the node of %s is not found: %s", principal, error.text)
            return
        now = time.monotonic()
        if now - self._noted.get(principal, -NOTE_EVERY) < NOTE_EVERY:
            return
        self._noted.pop(principal, None)
        self._noted[principal] = now
        while len(self._noted) > MAX_NOTED:
            del self._noted[next(iter(self._noted))]
        self._begin(self._note_use(principal, on_message))

    async def kill(self, principal: str) -> None:
        with suppress(KeyError):
            await self._observe(principal).kill_all()

    async def forget(self, principal: str) -> bool:
        self._workspaces.pop(principal, None)
        forgotten = False
        with suppress(KeyError):
            forgotten = await self._observe(principal).forget_principal()
        return forgotten

    def release_calls(self) -> bool:
        waited = [link.leave() for link in self.links]
        return any(waited)

    async def close(self) -> None:
        """Close the links. What runs at the nodes goes on."""
        for task in self._notes:
            task.cancel()
        await asyncio.gather(*(link.close() for link in self.links))

    def check_welcome(self, link: NodeLink, welcome: Welcome) -> None:
        """Raise NodeUnreachableError for a node that can't be used beside the others, or at all."""
        for other in self.links:
            if other is not link and other.name == welcome.name:
                raise NodeUnreachableError(
                    f"the nodes at {other.address} and at {link.address} are both called {welcome.name}: give each "
                    "node once; two nodes need names of their own (toolgate node --name) and state folders of their own"
                )
        if self._needs_sandbox and welcome.level == "none":
            raise NodeUnreachableError(
                f"the commands of the node at {link.address} are not sandboxed; beyond localhost, confirm it with "
                "--accept-unsandboxed"
            )
        before = "" if link.welcome is None else link.welcome.level
        if _rank_level(welcome.level) < _rank_level(before):
            now = escape_unprintable(welcome.level[:MAX_WORD])
            log.warning("the node at %s isolates commands less than before: %s, not %s", link.address, now, before)

    async def _check_node(self, link: NodeLink, welcome: Welcome) -> None:
        """Raise NodeUnreachableError as `check_welcome`, and for a node that says the name of another."""
        self.check_welcome(link, welcome)
        await self._placement.bind_name(link, welcome.name)

    def _take_end(self, link: NodeLink, end: TaskEnded, confirm: Callable[[bool], None]) -> None:
        """Report an end, if the principal is at that node."""
        if self._placement.find_link(end.principal) is link:
            self._report_end(end, confirm)
        else:
            self._begin(self._take_unlocated_end(link, end, confirm))

    async def _take_unlocated_end(self, link: NodeLink, end: TaskEnded, confirm: Callable[[bool], None]) -> None:
        """Report the end of a principal who has not called here."""
        if PRINCIPAL_NAME.fullmatch(end.principal) or end.principal == LOCAL_NAME:
            async with self._locating:
                await self._try_to_locate(end.principal)
        if self._placement.find_link(end.principal) is link:
            self._report_end(end, confirm)
        else:
            confirm(False)

    def _report_end(self, end: TaskEnded, confirm: Callable[[bool], None]) -> None:
        """Report an end. A node that restarts before it is confirmed sends it again."""
        key = end.principal, end.run.id, end.run.started, end.run.status
        is_earlier = key in self._ends
        self._ends[key] = None
        if len(self._ends) > MAX_NOTED:
            del self._ends[next(iter(self._ends))]
        self._on_task_end(end.principal, TaskEnd(end.run, partial(confirm, True), is_earlier))

    async def _try_to_locate(self, principal: str) -> None:
        while True:
            try:
                await self._placement.locate(principal, chooses=False)
            except StateError:
                await asyncio.sleep(LOCATE_PAUSE)
                continue
            except (KeyError, ToolError) as error:
                log.debug("an end of %s is not taken: %s", principal, error)
            return

    def follow_lives(self, on_life: Callable[[IsThere], None]) -> None:
        self._on_life = on_life
        for link in self.links:
            if link.is_connected:
                self._note_life(link)

    def _note_life(self, link: NodeLink) -> None:
        self._on_life(partial(self._is_at, link))

    async def _is_at(self, link: NodeLink, principal: str) -> bool:
        """Return whether the principal is at the node. Raises ToolError."""
        try:
            return await self._placement.locate(principal, chooses=False) is link
        except KeyError:
            return False

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def _note_use(self, principal: str, on_message: Callable[[str, str], None]) -> None:
        try:
            message = await self._observe(principal).note_use()
        except ToolError as error:
            log.debug("a call of %s is not noted: %s", principal, error.text)
            self._noted.pop(principal, None)
            return
        if message is not None:
            on_message(principal, message)

    async def _report_gone(self, link: NodeLink) -> None:
        while True:
            try:
                gone = await self._list_gone()
                if gone is not None:
                    if len(gone) > MAX_GONE:
                        log.warning("%d people are gone: the node is told of %d", len(gone), MAX_GONE)
                    await NodeRequests.create(link, LOCAL_NAME).report_gone(sorted(gone)[:MAX_GONE])
            except ToolError as error:  # also where the state can't be read
                log.warning("who is gone is not reported to the node at %s: %s", link.address, error.text)
            await asyncio.sleep(self._report_every)


def _rank_level(level: str) -> int:
    return LEVELS.index(level) if level in LEVELS else -1
