"""The workspaces of all principals of one server, each made when it is first asked for. Knows where they are; knows no
people.
"""

import asyncio
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from toolgate.server.workspaces.sandboxing import Sandboxing
from toolgate.tools.api.notices import Notices
from toolgate.tools.workspace.spool import Run
from toolgate.tools.workspace.workspace import Workspace

KILL_GRACE = 0.2  # seconds a process gets between SIGTERM and SIGKILL at the end: the client gives us 2 in all


class Workspaces:
    """`root` is where all work; None where each has a folder of its own in `state`."""

    def __init__(self, state: Path, root: Path | None, environment: Mapping[str, str], confinement: Sandboxing) -> None:
        self._state = state
        self._root = root
        self._environment = environment
        self._confinement = confinement
        self._held: dict[str, Workspace] = {}

    def get_or_open(self, principal: str, notices: Notices) -> Workspace:
        held = self._held.get(principal)
        if held is None:
            root, spool = self._root_of(principal), self._state / "spool" / principal
            held = self._held[principal] = Workspace(
                root,
                spool,
                self._environment,
                notices,
                command_environment=self._confinement.make_environment(root, spool, alone=self._root is None),
                private=self._state,
            )
        return held

    def find(self, principal: str) -> Workspace | None:
        """The principal's, if it is in use: to look at it takes none into use."""
        return self._held.get(principal)

    def sandbox_level(self, principal: str) -> str | None:
        """How the principal's commands are kept apart; None where none of them ran yet."""
        held = self._held.get(principal)
        return held.sandbox if held is not None else None

    def list_running(self) -> Iterator[Run]:
        """What runs now, everybody's."""
        for held in list(self._held.values()):
            yield from held.running()

    async def kill(self, principal: str) -> None:
        """End all that a principal has running."""
        held = self._held.get(principal)
        if held is not None:
            await held.kill_all()

    async def forget(self, principal: str) -> bool:
        """End all that a principal has running, and let go of its folders: at its next call they are taken anew. Was
        there something to forget?"""
        held = self._held.get(principal)
        if held is None:
            return False
        await held.kill_all()
        await held.close(KILL_GRACE)
        del self._held[principal]
        return True

    async def close(self) -> None:
        await asyncio.gather(*(held.close(KILL_GRACE) for held in self._held.values()))

    def _root_of(self, principal: str) -> Path:
        if self._root is not None:
            return self._root
        own = self._state / "workspaces" / principal
        own.mkdir(mode=0o700, exist_ok=True)
        if not stat.S_ISDIR(own.lstat().st_mode):  # a link, which no server made
            raise NotADirectoryError(f"{own} is no folder: it was tampered with")
        return own
