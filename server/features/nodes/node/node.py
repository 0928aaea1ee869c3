"""Hold what the sessions of all gateways share at a node: the workspaces, and the ends of tasks to report."""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable

from toolgate.server.features.nodes.node.load_meter import LoadMeter
from toolgate.server.features.nodes.node.moves import WorkspaceMoves
from toolgate.server.features.nodes.node.people import GonePrincipals
from toolgate.server.features.nodes.node.task_ends import TaskEnds
from toolgate.server.features.nodes.pages.node_pages import NodePages
from toolgate.server.workspaces.folders import WorkspaceInUseError
from toolgate.server.workspaces.local_workspaces import LocalWorkspaces
from toolgate.server.workspaces.retention import WorkspaceCleaner
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.local_workspace import LocalWorkspace
from toolgate.tools.workspace.output.run_record import TaskEnd
from toolgate.tools.workspace.workspace import WorkspaceMovedError

log = logging.getLogger("toolgate.node")


class Node:
    """The state of a node. `workspaces`, whose tasks report their ends here, `moves`, `pages` and `load_meter` are set
    before it serves."""

    def __init__(self) -> None:
        self.workspaces: LocalWorkspaces
        self.moves: WorkspaceMoves
        self.pages: NodePages
        self.load_meter: LoadMeter
        self.cleaner: WorkspaceCleaner | None = None
        self.gone = GonePrincipals()
        self.ends = TaskEnds()
        self.is_ending = False
        self.max_people = 0  # principals with a workspace here; 0 for any number
        self.is_away: Callable[[str], bool] = lambda _: True  # a gateway, by the name of its life
        self.before_call: Callable[[str], Awaitable[None]] = _do_nothing

    def find_workspace(self, principal: str, *, opens: bool) -> LocalWorkspace:
        """Return the principal's workspace. With `opens` make it at its first use, else raise KeyError if it has run
        nothing. Raises ToolError for a principal who is one too many."""
        if opens:
            self.refuse_beyond_limit(principal)
            return self.workspaces.get_or_open(principal)
        workspace = self.workspaces.find_recorded(principal)
        if workspace is None:
            raise KeyError(f"{principal} has run nothing here")
        return workspace

    def refuse_beyond_limit(self, principal: str) -> None:
        """Raise ToolError for a principal who is one too many."""
        if self.max_people and self.workspaces.find(principal) is None:
            people = self.workspaces.list_people()
            if principal not in people and len(people) >= self.max_people:
                raise ToolError(f"this node is full: it takes {self.max_people} (--max-people), and nothing was done")

    def note_task_end(self, principal: str, end: TaskEnd) -> None:
        """Keep the end of a task until a gateway has reported it."""
        self.ends.add(principal, end)

    async def list_gone(self) -> Collection[str] | None:
        """Return the principals that can't sign in any more, or None where no gateway has said."""
        return self.gone if self.gone.is_known else None

    async def forget(self, principal: str) -> None:
        """End all that a principal has running, and close its folders. Raises WorkspaceInUseError if it moves."""
        try:
            self.moves.check(principal)
        except WorkspaceMovedError as error:
            raise WorkspaceInUseError(error.text) from None
        await self.workspaces.forget(principal)

    async def adopt(self, principal: str, run_id: int) -> None:
        """Make a foreground command whose call is gone a background task."""
        try:
            await self.workspaces.get_or_open(principal).adopt(run_id)
        except KeyError:
            return
        log.info("command %d of %s continues without its gateway", run_id, principal)

    async def confirm_reads(self, gateway: str, principals: Iterable[str]) -> None:
        """Note that a gateway has sent its answers to these principals: it ends in order."""
        for principal in principals:
            workspace = self.workspaces.find(principal)
            if workspace is not None:
                await workspace.confirm_reads(gateway)

    def refuse_start_at_end(self) -> None:
        """Raise ToolError if the node ends."""
        if self.is_ending:
            raise ToolError("the node is shutting down: nothing more is started")


async def _do_nothing(_principal: str) -> None:
    """Stand in for the server of gateways until there is one."""
