"""Define the access of tools to a principal's processes and files, on this machine or another.

A run of a command has an id, and every method takes that id. Output is read by offset from a capped spool. No method
returns a process or a descriptor, and what a method returns does not change afterwards.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from toolgate.tools.api.context.services import ProgramResult
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.files.access import FileEntry
from toolgate.tools.workspace.files.open_file import OpenFile
from toolgate.tools.workspace.output.run_record import Run
from toolgate.tools.workspace.output.text import Excerpt

GRACE = 2.0  # seconds from SIGTERM to SIGKILL


class WorkspaceUnreachableError(ToolError):
    """The machine of the workspace can't be reached. What was started there may go on."""


class WorkspaceMovedError(ToolError):
    """The workspace is not used at this machine any more, or not yet."""


class ProgramInputError(ToolError):
    """The program takes no more input: it has ended, or closed its standard input."""


WORKSPACE_ERRORS = (WorkspaceMovedError, ProgramInputError)  # what a workspace elsewhere raises by their names


class ProgramEnd(msgspec.Struct, frozen=True):
    """The end of a program: its exit code (128 + N for signal N; None if unknown), the limits that it reached, in
    words, and why the server ended it, or None."""

    exit_code: int | None
    hits: list[str] = []
    reason: str | None = None


class ProgramAccess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where one program may go, beside its workspace.

    hosts: entries of `HostRules`, which it reaches and no others; None: the network of its principal's commands
    readable_paths, writable_paths: what it sees beside what these see
    table: where the operator wrote that, for refusals, such as "[mounts.github]"
    """

    table: str
    hosts: tuple[str, ...] | None = None
    readable_paths: tuple[Path, ...] = ()
    writable_paths: tuple[Path, ...] = ()

    def find_obstacle(self, level: str) -> str | None:
        """Return why a program can't be held to this at the level of a sandbox, or None."""
        if level == "none":
            return f"without a sandbox nothing holds it to the network and files of {self.table}: use --sandbox"
        if level == "uid" and self.hosts:
            return (
                f"at the level uid nothing holds it to the hosts of {self.table}: use --sandbox bwrap, or network = []"
            )
        return None


class ProgramStream(Protocol):
    """A running program and its standard input, output and error. Whoever opens one closes it."""

    async def read(self) -> bytes:
        """Return output as soon as there is some, at most 64 KiB, and b"" at the end. One caller at a time. Nothing is
        read ahead, so a program that nobody reads waits. A cancelled read takes nothing."""
        ...

    async def write(self, data: bytes) -> None:
        """Write all of the data, as fast as the program reads. A cancelled write may have written a part. Raises
        ProgramInputError."""
        ...

    async def close_input(self) -> None:
        """End the program's input."""
        ...

    async def stderr_tail(self) -> str:
        """Return the last lines of its standard error, as clean text."""
        ...

    async def wait(self) -> ProgramEnd:
        """Wait for the end of the program and of all that it started. What it leaves running is ended then."""
        ...

    async def close(self, grace: float = GRACE) -> None:
        """End the program: its input ends, `grace` seconds later its whole tree gets SIGTERM, and after as many again
        SIGKILL. Output that was not read is lost."""
        ...


class Conclusion(msgspec.Struct, frozen=True):
    """A foreground command at the end of its call.

    `run` names the limits it reached. `ended`: the command itself has ended; `gone`: so has all that it started. What
    goes on is a background task, or was ended for the reason `refused`. `seconds` is how long the command itself had
    run. `cwd` is the directory that it recorded, `previous` the one before.
    """

    run: Run
    ended: bool
    gone: bool
    refused: str | None
    seconds: float
    cwd: Path | None
    excerpt: Excerpt
    previous: Path | None = None


class NewOutput(msgspec.Struct, frozen=True):
    """Output that was not taken before, as clean `text`; `has_more`: more waits. `run` is as it was then.
    `is_repeated`: it begins where the last answer began, whose server has ended, perhaps before it sent the answer."""

    run: Run
    text: str
    has_more: bool
    is_repeated: bool = False


class Workspace(Protocol):
    """A principal's workspace. `root` is where tools work. `sandbox` is the level of its commands: "bwrap", "uid" or
    "none". `output_folder` has the files with their output. `private_folder`, if it may be inside the root, is the
    server's own, never read. `isolates_environment`: no command can read the environment and the memory of a program
    that `open_program` started.

    Every method that takes the id of a run raises KeyError for an unknown or forgotten one.
    """

    @property
    def root(self) -> Path: ...

    @property
    def sandbox(self) -> str: ...

    @property
    def output_folder(self) -> Path: ...

    @property
    def private_folder(self) -> Path | None: ...

    @property
    def isolates_environment(self) -> bool: ...

    async def start(
        self,
        command: str,
        *,
        cwd: Path | None = None,
        timeout: float | None = None,
        key: str | None = None,
        background: bool = False,
        read_only: bool = False,
        previous: Path | None = None,
    ) -> int:
        """Run `bash -c command` and return its id, which is never reused. A repeated key starts nothing.

        `cwd` None is the root, which also replaces a missing directory (`Run.moved`). `previous` is where `cd -` goes.
        After `timeout` seconds the tree is killed, unless the shell itself has ended. A `read_only` command can change
        nothing, and what it leaves running is ended; `find_read_only_obstacle` comes before. Raises ToolError.
        """
        ...

    async def execute(
        self,
        command: str,
        *,
        wait: float,
        limit: int,
        cwd: Path | None = None,
        timeout: float | None = None,
        read_only: bool = False,
        previous: Path | None = None,
    ) -> tuple[int, Conclusion | None]:
        """Start a command as `start` does, and return its id. If it has ended after `wait` seconds, conclude it as
        well. If the call is cancelled, the command is killed and forgotten."""
        ...

    async def conclude(self, run_id: int, *, limit: int) -> Conclusion:
        """Return how a foreground command has ended or goes on, with at most `limit` characters of its output.

        One that goes on becomes a background task, or is ended if there are too many. Output that the conclusion holds
        whole is removed.
        """
        ...

    async def find_read_only_obstacle(self) -> str | None:
        """Return why commands can't be run read-only here, or None."""
        ...

    async def run(self, run_id: int) -> Run:
        """Return the run as it is now."""
        ...

    async def list(self) -> list[Run]:
        """Return the background tasks as they are now, by id."""
        ...

    async def arrival(self) -> None:
        """Wait until there is another background task."""
        ...

    async def read(self, run_id: int, offset: int, limit: int) -> bytes:
        """Return at most `limit` bytes of output from byte `offset`."""
        ...

    async def size(self, run_id: int) -> int:
        """Return the size of the output in bytes."""
        ...

    async def take(self, run_id: int, limit: int) -> NewOutput:
        """Return the clean text that was not taken before, from at most `limit` bytes.

        No character, escape sequence or, if one ends near the limit, line is split between two takes. Bytes that are
        not UTF-8 are replaced.
        """
        ...

    async def mark_read(self, run_id: int, offset: int) -> None:
        """Record that the model has the output up to `offset`."""
        ...

    async def wait_output(self, run_id: int, beyond: int, timeout: float, *, whole: bool = False) -> int:
        """Wait until output is over `beyond`, the command (`whole`: its tree) ended, or `timeout`. Return its size."""
        ...

    async def wait_shell(self, run_id: int, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the command itself to end. Return whether it has."""
        ...

    async def wait(self, run_id: int, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the end of the run's whole tree. Return whether it has ended."""
        ...

    async def kill(self, run_id: int, grace: float = GRACE) -> Run:
        """End the whole tree: SIGTERM, and SIGKILL after `grace` seconds. Return the run. An ended run stays as it was.
        One that can't be killed is still `running` in the answer."""
        ...

    async def keep(self, run_id: int) -> str | None:
        """Keep a foreground run for the retention limit; one that goes on becomes a background task. If there are too
        many of those, it is ended: return why."""
        ...

    async def forget(self, run_id: int) -> None:
        """Remove an ended run and its output."""
        ...

    async def discard(self, run_id: int) -> None:
        """Kill a run and forget it."""
        ...

    async def read_cwd(self, run_id: int) -> Path | None:
        """Return the directory that a foreground command recorded at its end, if it exists."""
        ...

    async def read_file(self, path: str, limit: int, *, anywhere: bool) -> bytes:
        """Return a regular file's bytes. `path` is absolute; unless `anywhere`, its real path is inside the root.
        Raises ToolError for another path, another kind of file, and more than `limit` bytes."""
        ...

    async def open_file(self, path: str, limit: int, *, anywhere: bool) -> OpenFile:
        """Open the same kind of file, to be read piece by piece. Raises ToolError."""
        ...

    async def stat_path(self, path: str) -> FileEntry:
        """Return the entry at the absolute `path`, links followed. Raises NotFound, also for one outside the root."""
        ...

    async def entries(self, path: str, limit: int) -> tuple[Sequence[FileEntry], bool]:
        """Return at most `limit` entries by name, and whether there are more. Raises NotFound, ToolError."""
        ...

    async def resolve(self, path: str) -> Path:
        """Return the real path of the absolute `path`, existing or not. Raises NotFound if it is outside the root."""
        ...

    def check_file(self, path: str, *, suffix: str) -> None:
        """Raise ToolError for a path that `write_file` would refuse whatever is on disk."""
        ...

    async def write_file(self, path: str, data: bytes, *, suffix: str) -> Path:
        """Write a file below the root atomically, and return its path. Raises ToolError. `path` is relative to the
        root, or absolute and inside it; its name ends in `suffix`; links are not followed."""
        ...

    async def run_program(
        self,
        argv: Sequence[str],
        *,
        given: bytes = b"",
        limit: int = 2**20,
        timeout: float = 30.0,
        changes_files: bool = False,
    ) -> ProgramResult:
        """Run a program in the root, with the rights of the principal's commands, and return its end.

        `given` is its standard input. At most `limit` bytes of output are kept. Whatever it started is killed at its
        end. `changes_files`: it is refused in a workspace that is over its limit. Raises ToolError, and TimeoutError
        after `timeout` seconds: it was killed.
        """
        ...

    async def open_program(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        shows: Sequence[Path] = (),
        access: ProgramAccess | None = None,
    ) -> ProgramStream:
        """Start a program, in the root or `cwd`, and return its streams. It counts as a command, and is no task.

        It runs with the rights and limits of the principal's commands, in a sandbox of its own over the workspace, in
        which `shows` are seen too, read-only, and to which `access` applies. Its environment is what programs need
        (PATH, HOME, LANG, TMPDIR…) and `env`. Raises ToolError.
        """
        ...


def output_path(workspace: Workspace, run: Run) -> Path | None:
    """Return the file of a run's output for the next command; None if the disk was full at its start."""
    return None if run.in_memory else workspace.output_folder / str(run.id) / "output"
