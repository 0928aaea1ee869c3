"""Hold the workspaces of all principals of a gateway, which are at a node."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from pathlib import Path
from typing import Any

from toolgate.server.config.node_address import NodeAddress
from toolgate.server.node.gateway_session import LOCAL
from toolgate.server.node.link import NodeLink
from toolgate.server.node.messages import TaskEnded, Welcome
from toolgate.server.node.remote_workspace import NodeWorkspace
from toolgate.server.watch import FileChanges
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.spool import Run
from toolgate.tools.workspace.workspace import Workspace

COUNT_EVERY = 5.0  # seconds
REPORT_EVERY = 3_600.0  # seconds between two reports of who is gone, as a cleaner asks
NOTE_EVERY = 60.0  # seconds between two notes of a principal's calls

log = logging.getLogger("toolgate.node")


class RemoteWorkspaces:
    """The workspaces at the node of `link`'s address. `file_changes` watches this machine, for skills and plugins."""

    def __init__(
        self,
        address: NodeAddress,
        welcome: Welcome,
        file_changes: FileChanges,
        on_task_end: Callable[[str, Run], None],
        list_gone: Callable[[], Awaitable[Collection[str] | None]],
    ) -> None:
        self.link = NodeLink(address, welcome, self._take_end)
        self._file_changes = file_changes
        self._on_task_end = on_task_end
        self._workspaces: dict[str, NodeWorkspace] = {}
        self._running = (0, 0)
        self._noted: dict[str, float] = {}
        self._notes: set[asyncio.Task[None]] = set()
        self._list_gone = list_gone

    @property
    def level(self) -> str:
        return self.link.welcome.level

    def describe(self) -> str:
        return f"{self.link.welcome.description} at the node {self.link.address}"

    def get_or_open(self, principal: str) -> Workspace:
        found = self._workspaces.get(principal)
        if found is None:
            found = self._workspaces[principal] = NodeWorkspace(self.link, principal)
        return found  # type: ignore[return-value]  # its methods are those of a table

    def find(self, principal: str) -> Workspace | None:
        return self._observe(principal)  # type: ignore[return-value]  # as above

    def _observe(self, principal: str) -> NodeWorkspace:
        """Return a workspace whose requests are no calls of the principal."""
        return NodeWorkspace(self.link, principal, is_call=False)

    def sandbox_level(self, principal: str) -> str | None:
        return self.level if principal in self._workspaces else None

    def count_running(self) -> tuple[int, int]:
        return self._running

    def watch_path(self, principal: str, path: Path) -> AsyncIterator[object]:
        self.get_or_open(principal)
        workspace = self._workspaces[principal]
        return workspace.watch_path(path) if path.is_relative_to(workspace.root) else self._file_changes.follow(path)

    def list_jobs(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        return self.link.run, self._count, self._report_gone

    def note_use(self, principal: str, on_message: Callable[[str, str], None]) -> None:
        """Note a call of the principal at the node, at most once a minute. A message for it
        comes by `on_message(principal, message)`."""
        now = time.monotonic()
        if now - self._noted.get(principal, -NOTE_EVERY) < NOTE_EVERY:
            return
        self._noted[principal] = now

        async def note() -> None:
            try:
                message = await self._observe(principal).request("note_use")
            except ToolError as error:
                log.debug("a call of %s is not noted: %s", principal, error.text)
                self._noted.pop(principal, None)
                return
            if message is not None:
                on_message(principal, message)

        task = asyncio.get_running_loop().create_task(note())
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def kill(self, principal: str) -> None:
        await self._observe(principal).request("kill_all")

    async def forget(self, principal: str) -> bool:
        self._workspaces.pop(principal, None)
        forgotten: bool = await self._observe(principal).request("forget_principal")
        return forgotten

    async def close(self) -> None:
        """Close the link. What runs at the node goes on."""
        await self.link.close()

    def _take_end(self, end: TaskEnded) -> bool:
        if end.principal not in self._workspaces:
            return False
        self._on_task_end(end.principal, end.run)
        return True

    async def _count(self) -> None:
        while True:
            try:
                foreground, background = await self._observe(LOCAL).request("count_running")
                self._running = foreground, background
            except ToolError:
                self._running = 0, 0
            await asyncio.sleep(COUNT_EVERY)

    async def _report_gone(self) -> None:
        while True:
            gone = await self._list_gone()
            if gone is not None:
                try:
                    await self._observe(LOCAL).request("report_gone", sorted(gone))
                except ToolError as error:
                    log.warning("who is gone is not reported: %s", error.text)
            await asyncio.sleep(REPORT_EVERY)
