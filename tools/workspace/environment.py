"""Where a principal's commands run, and within which limits: with a sandbox or without."""

import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from toolgate.tools.workspace.limits import Limits
from toolgate.tools.workspace.zygote import CommandRunner

NPROC = resource.RLIMIT_NPROC  # counts all of a user's processes: only where the user, or the namespace, is its own


class CommandEnvironment(Protocol):
    """`level` is "bwrap", "uid" or "none". `uid` must own files made for commands; None: the user of the server does.
    In `cwd_folder` commands record their directory; None where they may write to any folder. `resources`
    are limits of each process, by number. `server_runner` runs what is the server's own. All but `level`, `limits` and
    `prepare` come after `prepare`.
    """

    level: str
    limits: Limits
    uid: int | None
    cwd_folder: Path | None
    resources: Mapping[int, int]
    server_runner: CommandRunner

    @property
    def runner(self) -> CommandRunner: ...

    def prepare(self) -> None:
        """Make it ready to move in. Blocking; raises OSError."""
        ...

    def refresh(self) -> None:
        """Make again what was removed meanwhile; before each command. Raises OSError."""
        ...

    def end_leftovers(self) -> None:
        """End what earlier servers, all dead, left running there. Blocking."""
        ...

    def variables(self, given: Mapping[str, str]) -> Mapping[str, str]:
        """What commands get."""
        ...

    def reached_limits(self) -> list[str]:
        """Which limits were reached since the last look, in words."""
        ...

    async def close(self) -> None:
        """End what is there."""
        ...


class UnsandboxedEnvironment:
    """No sandbox: commands run as the user of the server."""

    level = "none"
    uid: int | None = None
    cwd_folder: Path | None = None

    def __init__(self, runner: CommandRunner, limits: Limits) -> None:
        self.runner = self.server_runner = runner
        self.limits = limits
        self.resources: Mapping[int, int] = {
            number: value for number, value in resource_limits(limits, memory=True).items() if number != NPROC
        }

    def prepare(self) -> None: ...

    def refresh(self) -> None: ...

    def end_leftovers(self) -> None: ...

    def variables(self, given: Mapping[str, str]) -> Mapping[str, str]:
        return given

    def reached_limits(self) -> list[str]:
        return []

    async def close(self) -> None: ...


def resource_limits(limits: Limits, *, memory: bool = False) -> dict[int, int]:
    """As setrlimit(2) takes them, for each process of a command; with `memory` that too, as nothing else bounds it."""
    wanted = {
        resource.RLIMIT_CPU: limits.cpu,
        resource.RLIMIT_NOFILE: limits.files,
        resource.RLIMIT_FSIZE: limits.file_size,
        NPROC: limits.processes,
        resource.RLIMIT_DATA: limits.memory if memory else 0,
    }
    return {number: value for number, value in wanted.items() if value}
