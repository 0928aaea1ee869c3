"""Hold the workspaces of all principals of one server, each created at its first use."""

import asyncio
import stat
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from toolgate.server.workspaces.sandboxing import Sandboxing
from toolgate.tools.api.notices import Notices
from toolgate.tools.workspace import end_notice
from toolgate.tools.workspace.local_workspace import LocalWorkspace
from toolgate.tools.workspace.spool import Run

KILL_GRACE = 0.2  # seconds a process gets between SIGTERM and SIGKILL at the end: the client gives us 2 in all


class Workspaces:
    """The open workspaces. `root` is the one shared folder, or None if each principal has one in `state`."""

    def __init__(self, state: Path, root: Path | None, environment: Mapping[str, str], confinement: Sandboxing) -> None:
        self._state = state
        self._root = root
        self._environment = environment
        self._confinement = confinement
        self._workspaces: dict[str, LocalWorkspace] = {}

    def get_or_open(self, principal: str, notices: Notices) -> LocalWorkspace:
        workspace = self._workspaces.get(principal)
        if workspace is None:
            root, spool = self._root_of(principal), self._state / "spool" / principal
            workspace = self._workspaces[principal] = LocalWorkspace(
                root,
                spool,
                self._environment,
                partial(end_notice.add, notices),
                command_environment=self._confinement.make_environment(root, spool, alone=self._root is None),
                private=self._state,
            )
        return workspace

    def find(self, principal: str) -> LocalWorkspace | None:
        """Return the principal's workspace if it is open; opens none."""
        return self._workspaces.get(principal)

    def sandbox_level(self, principal: str) -> str | None:
        """Return the sandbox level of the principal's commands, or None before the first."""
        workspace = self._workspaces.get(principal)
        return workspace.sandbox if workspace is not None else None

    def list_running(self) -> Iterator[Run]:
        """Yield the running commands of all principals."""
        for workspace in list(self._workspaces.values()):
            yield from workspace.running()

    async def kill(self, principal: str) -> None:
        """End all commands of a principal."""
        workspace = self._workspaces.get(principal)
        if workspace is not None:
            await workspace.kill_all()

    async def forget(self, principal: str) -> bool:
        """End all commands of a principal and close its workspace. Return whether it was open."""
        workspace = self._workspaces.get(principal)
        if workspace is None:
            return False
        await workspace.kill_all()
        await workspace.close(KILL_GRACE)
        del self._workspaces[principal]
        return True

    async def close(self) -> None:
        await asyncio.gather(*(workspace.close(KILL_GRACE) for workspace in self._workspaces.values()))

    def _root_of(self, principal: str) -> Path:
        if self._root is not None:
            return self._root
        own = self._state / "workspaces" / principal
        own.mkdir(mode=0o700, exist_ok=True)
        if not stat.S_ISDIR(own.lstat().st_mode):  # a link, which no server creates
            raise NotADirectoryError(f"{own} is not a folder: it was tampered with")
        return own
