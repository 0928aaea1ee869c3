"""Define the workspaces of all principals, wherever their commands run and their files are."""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

from toolgate.tools.workspace.workspace import Workspace

IsThere = Callable[[str], Awaitable[bool]]  # of a principal; raises ToolError


class Workspaces(Protocol):
    """The workspaces of one server."""

    @property
    def level(self) -> str:
        """The sandbox level of commands: "bwrap", "uid" or "none"."""
        ...

    @property
    def outlive_server(self) -> bool:
        """Whether commands go on after the end of the server."""
        ...

    def describe(self) -> str:
        """Return the level with its details, in words."""
        ...

    def get_or_open(self, principal: str) -> Workspace: ...

    def find(self, principal: str) -> Workspace | None:
        """Return the principal's workspace without opening it: None, or one whose methods raise KeyError, if it is not
        open."""
        ...

    def find_recorded(self, principal: str) -> Workspace | None:
        """Return the principal's workspace for a look at its commands, also those of before the start; None, or one
        whose methods raise KeyError, if it has run nothing."""
        ...

    def sandbox_level(self, principal: str) -> str | None:
        """Return the sandbox level of the principal's commands, or None before the first."""
        ...

    def count_running(self) -> tuple[int, int]:
        """Return how many commands of all principals run in the foreground and in the background."""
        ...

    def count_lost_sandboxes(self) -> int:
        """Return how many sandboxes have ended with commands in them since the start."""
        ...

    def watch_path(self, principal: str, path: Path, since: float | None = None) -> AsyncIterator[object]:
        """Yield each time the file or folder changes, appears or goes: from `since` on, in seconds since 1970, or from
        now on."""
        ...

    def list_jobs(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """Return what to run beside the requests, each until it is cancelled."""
        ...

    def follow_lives(self, on_life: Callable[[IsThere], None]) -> None:
        """Call `on_life(is_there)` for each life of what runs commands, from here on: this process, or a node. The
        principals that are there may have ended commands that nobody has reported."""
        ...

    async def prepare(self, principal: str, on_message: Callable[[str, str], None]) -> None:
        """Find the principal's workspace, where workspaces are elsewhere, and note the call there. Come before a call
        that may use it. `on_message(principal, text)` gets a message for the principal."""
        ...

    async def kill(self, principal: str) -> None:
        """End all commands of a principal."""
        ...

    async def forget(self, principal: str) -> bool:
        """End all commands of a principal and close its workspace. Return whether it was open."""
        ...

    def release_calls(self) -> bool:
        """Fail the calls that wait for commands, where commands go on without this server: it ends. Return whether
        there were any."""
        ...

    async def close(self) -> None: ...
