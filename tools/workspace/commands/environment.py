"""Define where a principal's commands run and within which limits, with or without a sandbox."""

import resource
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from toolgate.tools.workspace.limits import Limits
from toolgate.tools.workspace.processes.process import ReadOnly
from toolgate.tools.workspace.processes.zygote import CommandRunner
from toolgate.tools.workspace.workspace import ProgramAccess

BuildReadOnly = Callable[[], ReadOnly | str]  # a confinement, or why there is none
NPROC = resource.RLIMIT_NPROC  # counts all of a user's processes: only for a user or a namespace of its own


class ProgramPlace(NamedTuple):
    """Where one program is to run: in a sandbox that shows these paths too, and to which `access` applies. `on_refusal`
    gets each sentence that refuses the program a host."""

    shown_paths: Sequence[Path]
    access: ProgramAccess | None
    on_refusal: Callable[[str], None]


class CommandEnvironment(Protocol):
    """Where commands run. `level` is "bwrap", "uid" or "none".

    `uid` must own files made for commands; None is the server's user. `resources` are per-process limits, by number.
    `server_runner` runs the server's own commands. Only `level`, `limits` and `prepare` may be used before `prepare`.
    """

    level: str
    limits: Limits
    uid: int | None
    resources: Mapping[int, int]
    server_runner: CommandRunner

    @property
    def runner(self) -> CommandRunner: ...

    def prepare(self) -> None:
        """Prepare the folders and the user. Blocking; raises OSError."""
        ...

    def refresh(self) -> None:
        """Make removed folders again; called before each command. Raises OSError."""
        ...

    def end_leftovers(self) -> None:
        """End the remaining processes of dead servers. Blocking."""
        ...

    def variables(self, given: Mapping[str, str]) -> Mapping[str, str]:
        """Return the variables for commands."""
        ...

    def reached_limits(self) -> list[str]:
        """Return the limits reached since the last call, in words."""
        ...

    def find_read_only_obstacle(self) -> str | None:
        """Return why commands can't be run read-only here, or None. Blocking at first."""
        ...

    @property
    def has_own_tmp(self) -> bool:
        """Whether a read-only command has a /tmp of its own."""
        ...

    def prepare_read_only(self, writable: Sequence[Path]) -> tuple[CommandRunner, ReadOnly]:
        """Return the runner and the confinement of one command that may change nothing but what is `writable`."""
        ...

    @property
    def isolates_programs(self) -> bool:
        """Whether no command of the principal can read the environment and the memory of its programs."""
        ...

    def program_variables(self, given: Mapping[str, str], place: ProgramPlace) -> Mapping[str, str]:
        """Return the variables for one program."""
        ...

    async def prepare_program(self, place: ProgramPlace) -> CommandRunner:
        """Return the runner of one program: in a sandbox of its own, where there are any. It starts at once, without a
        wait between: else the end of another sandbox may be its end. Raises ToolError for paths that must not be seen.
        """
        ...

    @property
    def is_running(self) -> bool:
        """Whether a sandbox starts, runs or ends."""
        ...

    def release(self) -> None:
        """Give up what an idle principal needs not; `prepare` comes before the next command. Blocking."""
        ...

    async def close(self) -> None:
        """End all processes."""
        ...


class UnsandboxedEnvironment:
    """No sandbox: commands run as the server's user."""

    level = "none"
    uid: int | None = None
    has_own_tmp = False
    isolates_programs = False

    def __init__(self, runner: CommandRunner, limits: Limits, build_read_only: BuildReadOnly | None = None) -> None:
        """`build_read_only` returns the confinement of read-only commands; None: there are none."""
        self._build_read_only = build_read_only
        self._read_only: ReadOnly | None = None  # known
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

    def find_read_only_obstacle(self) -> str | None:
        if self._build_read_only is None:
            return "this server has no filter for it"
        built = self._build_read_only()
        if isinstance(built, str):
            return built
        self._read_only = built
        return None

    def prepare_read_only(self, writable: Sequence[Path]) -> tuple[CommandRunner, ReadOnly]:
        assert self._read_only is not None
        return self.runner, replace(self._read_only, writable=writable)

    def program_variables(self, given: Mapping[str, str], place: ProgramPlace) -> Mapping[str, str]:
        return given

    async def prepare_program(self, place: ProgramPlace) -> CommandRunner:
        return self.runner

    @property
    def is_running(self) -> bool:
        return False

    def release(self) -> None: ...

    async def close(self) -> None: ...


def resource_limits(limits: Limits, *, memory: bool = False) -> dict[int, int]:
    """Return each process's limits for setrlimit(2); `memory` adds one if nothing else bounds it."""
    wanted = {
        resource.RLIMIT_CPU: limits.cpu,
        resource.RLIMIT_NOFILE: limits.files,
        resource.RLIMIT_FSIZE: limits.file_size,
        NPROC: limits.processes,
        resource.RLIMIT_DATA: limits.memory if memory else 0,
    }
    return {number: value for number, value in wanted.items() if value}
