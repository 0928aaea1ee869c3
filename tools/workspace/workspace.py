"""Give tools access to a principal's processes and files through one object.

A run of a command has an id, and every method takes that id. Output is read by offset from a capped spool. No method
returns a process or a descriptor, so the work could move to another machine.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.notices import Notices
from toolgate.tools.api.services import ProgramResult
from toolgate.tools.api.spans import span
from toolgate.tools.workspace import cwd_tracking, files
from toolgate.tools.workspace.ansi import clean_output
from toolgate.tools.workspace.environment import CommandEnvironment
from toolgate.tools.workspace.limit_checks import LimitChecks
from toolgate.tools.workspace.open_file import OpenFile
from toolgate.tools.workspace.output_text import describe_end, shorten_command
from toolgate.tools.workspace.process import CommandStartError, Launch
from toolgate.tools.workspace.run import GRACE, RunningCommand
from toolgate.tools.workspace.runs import RunStore, no_room
from toolgate.tools.workspace.spool import Run

if TYPE_CHECKING:
    from toolgate.tools.workspace.program import Programs

MAX_COMMAND = 131_071  # Linux's limit of one argument in bytes
KILL_WITHIN = 3.0  # seconds for a tree to end after SIGKILL, unless another user owns it
CLOSE_WITHIN = 0.15  # the same, at shutdown
NEAR = 4096  # bytes before the end of a take that are searched for a line end
NAMED = 60  # characters of a command in a notice
NOTICE_SCOPE = "tools:read"  # the scope needed to read a notice, as for the output
READS = 2  # concurrent file reads of one principal: each file is in memory whole


class Workspace:
    """A principal's workspace. `root` is where tools work, `spool` a private folder for output, `variables` those of
    commands.

    `private` is the server's own folder, never read even inside the root. Commands run in `command_environment`, within
    its limits; `sandbox` is its level: "bwrap", "uid" or "none". Every method raises KeyError for an unknown or
    forgotten id.
    """

    def __init__(
        self,
        root: Path,
        spool: Path,
        variables: Mapping[str, str],
        notices: Notices,
        *,
        command_environment: CommandEnvironment,
        private: Path | None = None,
    ) -> None:
        self.root = Path(os.path.realpath(root))  # as `pwd -P` would say it
        self.output_folder = spool
        self.sandbox = command_environment.level
        self._environment = command_environment
        self._variables = variables
        self._notices = notices
        own = Path(os.path.realpath(private)) if private is not None else None
        self.private_folder = None if own is None or self.root.is_relative_to(own) else own
        self._runs = RunStore(spool, command_environment)
        self._live = self._runs.live
        self.limits = LimitChecks(command_environment, self.root, self._live)
        self._programs: Programs | None = None
        self._reading = asyncio.Semaphore(READS)
        self._arriving = asyncio.Event()  # set and replaced at each new background task
        self._closed = False
        self._can_read_only = False  # known

    async def start(
        self,
        command: str,
        *,
        cwd: Path | None = None,
        timeout: float | None = None,
        key: str | None = None,
        background: bool = False,
        read_only: bool = False,
    ) -> int:
        """Run `bash -c command` and return its id, which is never reused. A repeated key starts nothing.

        `cwd` None is the root, which also replaces a missing directory (`Run.moved`). After `timeout` seconds the tree
        is killed, unless the shell itself has ended. A `read_only` command can change nothing, and what it leaves
        running is ended; `find_read_only_obstacle` comes before. Raises ToolError.
        """
        await self._runs.open()
        earlier = self._runs.find_key(key)
        if earlier in self._live:
            await self._live[earlier].start_done
        if earlier is not None and earlier == self._runs.find_key(key):  # it could be started
            return earlier
        self._admit(command, background)
        running = RunningCommand(*self._runs.claim(command, key, background), self._on_end)
        running.run.read_only = read_only
        self._live[running.run.id] = running
        with span("start command"):
            await self._begin(running, command, cwd or self.root, timeout)
        if background:
            self.limits.limit_age(running.run.id)
            self._notify_arrival()
        return running.run.id

    async def find_read_only_obstacle(self) -> str | None:
        """Return why commands can't be run read-only here, or None."""
        if not self._can_read_only:
            why = await asyncio.to_thread(self._environment.find_read_only_obstacle)
            if why is not None:
                return why
            self._can_read_only = True
        return None

    async def run(self, run_id: int) -> Run:
        """Return the run."""
        return (await self._runs.open())[run_id]

    def running(self) -> Sequence[Run]:
        """Return the running commands."""
        return [running.run for running in self._live.values()]

    async def list(self) -> list[Run]:
        """Return the background tasks, by id."""
        runs = await self._runs.open()
        return [run for _, run in sorted(runs.items()) if run.background]

    async def arrival(self) -> None:
        """Wait until there is another background task."""
        await self._arriving.wait()

    async def read(self, run_id: int, offset: int, limit: int) -> bytes:
        """Return at most `limit` bytes of output from byte `offset`."""
        await self.run(run_id)
        return self._runs.read(run_id, offset, limit)

    async def size(self, run_id: int) -> int:
        """Return the size of the output in bytes."""
        await self.run(run_id)
        return self._runs.size(run_id)

    async def take(self, run_id: int, limit: int) -> tuple[str, bool]:
        """Return the clean text that was not taken before, from at most `limit` bytes, and whether more waits.

        No character, escape sequence or, if one ends near the limit, line is split between two takes. Bytes that are
        not UTF-8 are replaced.
        """
        run = await self.run(run_id)
        offset, size = run.read, await self.size(run_id)
        data = await self.read(run_id, offset, limit)
        more = offset + len(data) < size
        if more:
            data = data[: data.rfind(b"\n", -NEAR) + 1] or data
        text, used = clean_output(data, final=not more and run.status != "running")
        if more and not used:  # an empty take would be repeated for ever
            text, used = clean_output(data, final=True)
        await self.mark_read(run_id, offset + used)
        return text, more

    async def mark_read(self, run_id: int, offset: int) -> None:
        """Record that the model has the output up to `offset`."""
        run = await self.run(run_id)
        if run.read != offset:
            run.read = offset
            self._runs.save(run)

    async def wait_output(self, run_id: int, beyond: int, timeout: float, *, whole: bool = False) -> int:
        """Wait until output is over `beyond`, the command (`whole`: its tree) ended, or `timeout`. Return its size."""
        running = self._live.get(run_id)
        if running is not None:
            await running.wait_output(beyond, timeout, whole=whole)
        return await self.size(run_id)

    async def wait_shell(self, run_id: int, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the command itself to end. Return whether it has."""
        await self.run(run_id)
        running = self._live.get(run_id)
        return running is None or await running.wait_shell(timeout)

    async def wait(self, run_id: int, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the end of the run's whole tree. Return whether it has ended."""
        await self.run(run_id)
        running = self._live.get(run_id)
        return running is None or await running.wait(timeout)

    async def kill(self, run_id: int, grace: float = GRACE) -> Run:
        """End the whole tree: SIGTERM, and SIGKILL after `grace` seconds. Return the run. An ended run stays as it was.
        One that can't be killed is still `running` in the answer."""
        run = await self.run(run_id)
        running = self._live.get(run_id)
        if running is not None:
            running.terminate(grace=grace)
            await running.wait(grace + KILL_WITHIN)
        return run

    async def kill_all(self) -> None:
        """End all runs and programs."""
        if self._programs is not None:
            self._programs.kill()
        await asyncio.gather(*(self.kill(run_id) for run_id in list(self._live)))

    async def keep(self, run_id: int) -> bool:
        """Keep a foreground run for the retention limit; one that goes on becomes a background task. False if there are
        too many of those: it was ended."""
        run = await self.run(run_id)
        goes_on = run.status == "running" and not run.background
        is_welcome = not goes_on or self.limits.has_room
        if not is_welcome:
            await self.kill(run_id)
        run.background = run.background or run.status == "running"
        self._runs.save(run)
        self._runs.attended.discard(run_id)
        if run.background:
            self.limits.limit_age(run_id)
            self._notify_arrival()
        self._runs.forget_old()
        return is_welcome

    async def forget(self, run_id: int) -> None:
        """Remove an ended run and its output."""
        self._runs.forget(run_id)

    def drop_notice(self, run_id: int) -> None:
        """Drop the notice of a background task's end, which the model already knows."""
        self._notices.drop(f"bg-{run_id}")

    def output_path(self, run_id: int) -> Path | None:
        """Return the file of a run's output for the next command; None if the disk was full at its start."""
        return self._runs.output_path(run_id)

    async def read_cwd(self, run_id: int) -> Path | None:
        """Return the directory that a foreground command recorded at its end, if it exists."""
        return cwd_tracking.read_cwd(self._runs.cwd_file(run_id), must_exist=self._environment.cwd_folder is None)

    async def read_file(self, path: str, limit: int, *, anywhere: bool) -> bytes:
        """Return a regular file's bytes. `path` is absolute; unless `anywhere`, its real path is inside the root.
        Raises ToolError for another path, another kind of file, and more than `limit` bytes."""
        await self._runs.open()
        reach = None if anywhere else self.root
        async with self._reading:
            return await asyncio.to_thread(files.read, path, limit, reach, self.private_folder, self._environment.uid)

    async def open_file(self, path: str, limit: int, *, anywhere: bool) -> OpenFile:
        """Open the same kind of file, to be read piece by piece. Raises ToolError."""
        await self._runs.open()
        reach = None if anywhere else self.root
        return await asyncio.to_thread(
            files.open_regular, path, limit, reach, self.private_folder, self._environment.uid
        )

    async def stat_path(self, path: str) -> files.FileEntry:
        """Return the entry at the absolute `path`, links followed. Raises NotFound, also for one outside the root."""
        return await asyncio.to_thread(files.stat_path, path, self.root, self.private_folder)

    async def entries(self, path: str, limit: int) -> tuple[Sequence[files.FileEntry], bool]:
        """Return at most `limit` entries by name, and whether there are more. Raises NotFound, ToolError."""
        return await asyncio.to_thread(files.entries, path, self.root, limit, self.private_folder)

    async def resolve(self, path: str) -> Path:
        """Return the real path of the absolute `path`, existing or not. Raises NotFound if it is outside the root."""
        return Path(await asyncio.to_thread(files.resolve_inside, path, self.root, self.private_folder))

    def check_file(self, path: str, *, suffix: str) -> None:
        """Raise ToolError for a path that `write_file` would refuse whatever is on disk."""
        files.split_path(path, self.root, suffix)

    async def write_file(self, path: str, data: bytes, *, suffix: str) -> Path:
        """Write a file below the root atomically, and return its path. Raises ToolError. `path` is relative to the
        root, or absolute and inside it; its name ends in `suffix`; links are not followed."""
        await self._runs.open()
        return await asyncio.to_thread(files.write, path, data, self.root, suffix, self._environment.uid)

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
        await self._runs.open()
        if self._closed:
            raise ToolError("the server is shutting down: nothing more is started")
        from toolgate.tools.workspace.program import Programs  # start-up: for plugins

        self._programs = self._programs or Programs(
            self._environment, self.limits, self.root, self._variables, str(self.output_folder)
        )
        return await self._programs.run(argv, given, limit, timeout, changes_files=changes_files)

    async def close(self, grace: float) -> None:
        """End every tree: SIGTERM, and SIGKILL after `grace` seconds. It takes at most 0.2 s more."""
        self._closed = True
        if self._programs is not None:
            self._programs.abandon()
        self.limits.close()
        await self._runs.wait_opening(grace + CLOSE_WITHIN)
        still = [*self._live.values()]
        for running in still:
            running.terminate("the server stopped", grace)
        gone = asyncio.gather(*(running.wait(grace + CLOSE_WITHIN) for running in still))
        await asyncio.wait([gone], timeout=grace + CLOSE_WITHIN)
        for running in still:
            running.abandon()
        await asyncio.wait([gone], timeout=CLOSE_WITHIN)
        gone.cancel()
        await self._environment.close()
        await self._runs.close(CLOSE_WITHIN)

    def _notify_arrival(self) -> None:
        self._arriving.set()
        self._arriving = asyncio.Event()

    def _admit(self, command: str, background: bool) -> None:
        if self._closed:
            raise ToolError("the server is shutting down: nothing more is started")
        self.limits.check_start(background=background)
        try:
            size = len(command.encode())
        except UnicodeEncodeError:
            raise ToolError("the command holds half of a surrogate pair, which is not a character") from None
        if "\0" in command:
            raise ToolError(r"the command holds a NUL character, which no command line can: write $'\0' or \0")
        if size > MAX_COMMAND:
            raise ToolError(f"the command is {size:,} bytes, over {MAX_COMMAND:,}: write it to a file, run that")

    async def _begin(self, running: RunningCommand, command: str, cwd: Path, timeout: float | None) -> None:
        run, place = running.run, self._environment
        try:
            await self.limits.remeasure()
            place.refresh()
            variables = place.variables(self._variables)
            runner, read_only = place.runner, None
            if run.read_only:
                runner, read_only = place.prepare_read_only(self._runs.make_cwd_file(run))
            if not run.background:
                variables = self._runs.track_cwd(run, variables)
            argv, is_full = ["bash", "-c", command], self.limits.is_full and not run.read_only
            owner = str(self.output_folder)
            launch = Launch(argv, cwd, self.root, variables, self.limits.resources, is_full, read_only, owner)
            await running.begin(runner, launch, timeout)
            self.limits.command_started()
        except BaseException as error:
            del self._live[run.id]
            await self.forget(run.id)
            if isinstance(error, CommandStartError):
                raise ToolError(f"the command was not started: {error}") from None
            if isinstance(error, OSError):
                raise no_room(error) from None
            raise

    def _on_end(self, running: RunningCommand) -> None:
        run = running.run
        self.limits.command_ended()
        del self._live[run.id]
        if run.read_only:
            cwd_tracking.empty_if_large(self._runs.cwd_file(run.id))
        if run.background:
            self.limits.find_reached(run, self._runs.read_tail(run))
            self._runs.save(run)
            if not running.is_ending or run.reason is not None:
                name = shorten_command(run.command, NAMED)
                text = f"background task {run.id} ({name}) {describe_end(run)}; read it with ReadBgOutput"
                self._notices.add(f"bg-{run.id}", text, NOTICE_SCOPE)
        self._runs.forget_old()
