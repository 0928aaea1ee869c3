"""Measure how full this node is, at most once a second for all gateways together."""

import asyncio
import time
from pathlib import Path

from toolgate.server.features.nodes.pages.node_pages import NodePages
from toolgate.server.features.nodes.report import NodeLoad
from toolgate.server.workspaces.folders import PrincipalFolders
from toolgate.server.workspaces.free_space import measure_free_disk, measure_free_memory
from toolgate.server.workspaces.local_workspaces import LocalWorkspaces

FRESH = 1.0  # seconds that a measurement is used


class LoadMeter:
    """Measures the node with this state. `root` is the one shared workspace, or None."""

    def __init__(self, state: Path, root: Path | None, workspaces: LocalWorkspaces, pages: NodePages) -> None:
        self._folders = PrincipalFolders(state)
        self._disks = (state, self._folders.spools, self._folders.workspaces if root is None else root)
        self._workspaces = workspaces
        self._pages = pages
        self._lock = asyncio.Lock()
        self._measured: tuple[float, NodeLoad] | None = None

    async def measure(self) -> NodeLoad:
        async with self._lock:
            if self._measured is None or time.monotonic() - self._measured[0] >= FRESH:
                self._measured = time.monotonic(), await self._measure()
            return self._measured[1]

    async def _measure(self) -> NodeLoad:
        foreground, background = self._workspaces.count_running()
        people, disk, memory = await asyncio.to_thread(self._read_system)
        return NodeLoad(
            *(people, foreground, background, disk, memory, list(self._workspaces.weaknesses)),
            *self._pages.count(),
            lost_sandboxes=self._workspaces.count_lost_sandboxes(),
        )

    def _read_system(self) -> tuple[int, int | None, int | None]:
        return len(self._folders.list_names()), measure_free_disk(self._disks), measure_free_memory()
