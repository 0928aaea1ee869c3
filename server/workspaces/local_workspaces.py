"""Hold the workspaces of all principals on this machine, each created at its first use."""

import asyncio
import os
import stat
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import ref

from toolgate.server.base.watch import FileChanges
from toolgate.server.workspaces.sandboxing import Sandboxing
from toolgate.tools.workspace.output.run_record import TaskEnd
from toolgate.tools.workspace.workspaces import IsThere

if TYPE_CHECKING:
    from toolgate.tools.workspace.local_workspace import LocalWorkspace

KILL_GRACE = 0.2  # seconds a process gets between SIGTERM and SIGKILL at the end: the client gives us 2 in all


class LocalWorkspaces:
    """The workspaces. `root` is the one shared folder, or None if each principal has one in `state`.

    A workspace that nothing uses closes, and stays in memory only as long as a session has it.

    `on_task_end` is called with the principal and each of its background tasks that ended, also with an earlier server.
    Commands get the PATH of `login_shell`, which is that of the one person whose server this is.
    """

    def __init__(
        self,
        state: Path,
        root: Path | None,
        environment: Mapping[str, str],
        confinement: Sandboxing,
        file_changes: FileChanges,
        on_task_end: Callable[[str, TaskEnd], None],
        login_shell: str | None = None,
    ) -> None:
        self._state = state
        self._root = root
        self._environment = environment
        self._confinement = confinement
        self._file_changes = file_changes
        self._on_task_end = on_task_end
        self._login_shell = login_shell
        self._workspaces: dict[str, LocalWorkspace] = {}  # the open ones
        self._idle: dict[str, ref[LocalWorkspace]] = {}  # those that are not open, or not any more

    outlive_server = False

    @property
    def level(self) -> str:
        return self._confinement.level

    @property
    def isolates_environment(self) -> bool:
        """Whether commands can't read the environment of programs: see Workspace."""
        return self._confinement.isolates_environment

    def describe(self) -> str:
        return self._confinement.describe()

    @property
    def weaknesses(self) -> Sequence[str]:
        """What the sandbox and the limits of commands lack."""
        return self._confinement.weaknesses

    def get_or_open(self, principal: str) -> "LocalWorkspace":
        workspace = self._find_object(principal)
        if workspace is None:
            # start-up and memory: the first call needs it, and a client may open servers that it never calls
            from toolgate.tools.workspace.local_workspace import LocalWorkspace

            root, spool = self._root_of(principal), self._state / "spool" / principal
            workspace = LocalWorkspace(
                root,
                spool,
                self._environment,
                partial(self._on_task_end, principal),
                command_environment=self._confinement.make_environment(root, spool, alone=self._root is None),
                private=self._state,
                login_shell=self._login_shell,
                on_open=partial(self._note_use, principal),
                on_close=partial(self._note_idle, principal),
            )
            self._idle[principal] = ref(workspace)
        return workspace

    def _find_object(self, principal: str) -> "LocalWorkspace | None":
        """Return the workspace if it is in memory, open or not."""
        workspace, idle = self._workspaces.get(principal), self._idle.get(principal)
        return workspace if workspace is not None or idle is None else idle()

    def _note_use(self, principal: str) -> None:
        if principal in self._idle and (workspace := self._idle.pop(principal)()) is not None:
            self._workspaces[principal] = workspace

    def _note_idle(self, principal: str) -> None:
        workspace = self._workspaces[principal]
        if not workspace.limits.excess:  # else it is known until the next measurement
            self._idle[principal] = ref(self._workspaces.pop(principal))

    def find(self, principal: str) -> "LocalWorkspace | None":
        return self.get_or_open(principal) if principal in self._idle else self._workspaces.get(principal)

    def find_recorded(self, principal: str) -> "LocalWorkspace | None":
        found = self.find(principal)
        if found is None and self._has_record(principal):
            return self.get_or_open(principal)
        return found

    def _has_record(self, principal: str) -> bool:
        """Return whether an earlier process ran commands of the principal. What was archived is not made again."""
        root = self._root or self._state / "workspaces" / principal
        return (self._state / "spool" / principal).is_dir() and root.is_dir()

    def sandbox_level(self, principal: str) -> str | None:
        has_used = principal in self._workspaces or principal in self._idle
        return self._confinement.level if has_used else None

    def count_running(self) -> tuple[int, int]:
        counts = Counter(run.background for each in self._workspaces.values() for run in each.running())
        return counts[False], counts[True]

    def count_lost_sandboxes(self) -> int:
        return self._confinement.lost_sandboxes

    def watch_path(self, principal: str, path: Path, since: float | None = None) -> AsyncIterator[object]:
        return self._file_changes.follow(path, self.get_or_open(principal).root, since)

    def list_jobs(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        return self._confinement.end_orphans, self._confinement.balance_cpu

    def follow_lives(self, on_life: Callable[[IsThere], None]) -> None:
        on_life(_is_here)

    def has_files(self, principal: str) -> bool:
        """Return whether the principal has a folder of its own with files. Opens none."""
        try:
            return self._root is None and bool(os.listdir(self._state / "workspaces" / principal))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def list_people(self) -> list[str]:
        """Return the principals that have a folder of their own."""
        return os.listdir(self._state / "workspaces")

    async def prepare(self, principal: str, on_message: Callable[[str, str], None]) -> None:
        """Do nothing: workspaces are here, and the cleaner of this process notes calls."""

    async def kill(self, principal: str) -> None:
        workspace = self._workspaces.get(principal)
        if workspace is not None:
            await workspace.kill_all()

    async def forget(self, principal: str) -> bool:
        workspace = self._find_object(principal)
        if workspace is not None:
            await workspace.kill_all()
            await workspace.close(KILL_GRACE)
        self._workspaces.pop(principal, None)
        self._idle.pop(principal, None)
        return workspace is not None

    def release_calls(self) -> bool:
        """Do nothing: the commands end with this process."""
        return False

    async def close(self) -> None:
        """End all commands, and close the sandbox."""
        idle = (workspace for each in self._idle.values() if (workspace := each()) is not None)
        await asyncio.gather(*(workspace.close(KILL_GRACE) for workspace in (*self._workspaces.values(), *idle)))
        await self._confinement.close()

    def _root_of(self, principal: str) -> Path:
        if self._root is not None:
            return self._root
        own = self._state / "workspaces" / principal
        own.mkdir(mode=0o700, exist_ok=True)
        if not stat.S_ISDIR(own.lstat().st_mode):  # a link, which no server creates
            raise NotADirectoryError(f"{own} is not a folder: it was tampered with")
        return own


async def _is_here(_principal: str) -> bool:
    return True
