"""The one object through which a tool touches processes and files, those of one principal. Knows nothing of tools.

A run of a command has an id, and everything about it is done by that id, from anywhere. Output is read by offset from
a capped spool. Work may leave this machine behind these methods one day: none hands out a process or a descriptor.
"""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.notices import Notices
from toolgate.tools.api.spans import span
from toolgate.tools.api.threads import Threads
from toolgate.tools.workspace import cwd_tracking, files
from toolgate.tools.workspace.ansi import clean_output
from toolgate.tools.workspace.environment import CommandEnvironment
from toolgate.tools.workspace.limit_checks import LimitChecks
from toolgate.tools.workspace.open_file import OpenFile
from toolgate.tools.workspace.output_text import describe_end, shorten_command
from toolgate.tools.workspace.process import CommandStartError, Launch
from toolgate.tools.workspace.run import GRACE, RunningCommand
from toolgate.tools.workspace.spool import FULL, MemoryOutput, Run, RunOutput, Spool

MAX_COMMAND = 131_071  # bytes Linux takes as one argument
KILL_WITHIN = 3.0  # seconds for a tree to be gone after SIGKILL: the kernel's work, unless it is another user's process
CLOSE_WITHIN = 0.15  # seconds, at shutdown, for the same
NEAR = 4096  # bytes before the end of a take in which it ends with a line, where one ends there
MAX_TAIL = 4096  # bytes of output that may tell of a limit
NAMED = 60  # characters of a command in a notice
NOTICE_SCOPE = "tools:read"  # the scope of a notice: what it takes to read the output
READS = 2  # files of one principal that are read at once: each is in memory whole, and what waits for the loop with it

log = logging.getLogger(__name__)


class Workspace:
    """`root` is where tools work; `spool` a private folder for output; `environment` is what commands get.

    `private` is the server's own folder: where the root holds it, nothing of it is read. `quarters` is where commands
    run, and within which limits; `sandbox` says how they are kept apart there: "bwrap", "uid" or "none".
    Ids that are unknown, or forgotten, raise KeyError throughout.
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
        self.sandbox = command_environment.level
        self._command_environment = command_environment
        self._variables = variables
        self._notices = notices
        own = Path(os.path.realpath(private)) if private is not None else None
        self._private = None if own is None or self.root.is_relative_to(own) else own
        self._spool = Spool(spool)
        self._runs: dict[int, Run] = {}  # of this server and of earlier ones
        self._running: dict[int, RunningCommand] = {}
        self.limits = LimitChecks(command_environment, self.root, self._running)
        self._unkept: dict[int, MemoryOutput] = {}  # what began while the disk was full
        self._attended: set[int] = set()  # foreground runs whose caller has not said what is to become of them
        self._removing: set[asyncio.Future[None]] = set()
        self._reading = asyncio.Semaphore(READS)
        self._arriving = asyncio.Event()  # set, and another, with each background task
        self._opened = False
        self._opening: asyncio.Task[None] | None = None
        self._opener = Threads(1)  # a disk that hangs must not hold up the end of the server
        self._closed = False

    async def start(
        self,
        command: str,
        *,
        cwd: Path | None = None,
        timeout: float | None = None,
        key: str | None = None,
        background: bool = False,
    ) -> int:
        """Run `bash -c command` and give its id, which is never reused. A key given twice starts nothing twice.

        `cwd` None is the root, which also takes the place of a directory that is gone (`Run.moved`). After `timeout`
        seconds the tree is killed, unless the shell itself has ended. Raises ToolError.
        """
        await self._open()
        held = next((run.id for run in self._runs.values() if key is not None and run.key == key), None)
        if held in self._running:
            await self._running[held].start_done
        if held is not None and held in self._runs:  # not one that could not be started
            return held
        self._admit(command, background)
        running = self._claim(command, key, background)
        with span("start command"):
            await self._begin(running, command, cwd or self.root, timeout)
        if background:
            self.limits.limit_age(running.run.id)
            self._notify_arrival()
        return running.run.id

    async def run(self, run_id: int) -> Run:
        """What is known of a run."""
        return (await self._open())[run_id]

    def running(self) -> Sequence[Run]:
        """What runs now."""
        return [running.run for running in self._running.values()]

    async def list(self) -> list[Run]:
        """The background tasks there are, by id."""
        runs = await self._open()
        return [run for _, run in sorted(runs.items()) if run.background]

    async def arrival(self) -> None:
        """Wait until there is another background task."""
        await self._arriving.wait()

    async def read(self, run_id: int, offset: int, limit: int) -> bytes:
        """Output from byte `offset`, at most `limit` bytes."""
        await self.run(run_id)
        output = self._output(run_id)
        return output.read(offset, limit) if output else self._spool.read(run_id, offset, limit)

    async def size(self, run_id: int) -> int:
        """Bytes of output there are."""
        await self.run(run_id)
        output = self._output(run_id)
        return output.size if output else self._spool.size(run_id)

    async def take(self, run_id: int, limit: int) -> tuple[str, bool]:
        """The clean text that nobody took before, from at most `limit` bytes, and whether more waits.

        No character, escape sequence or, where one ends near the limit, line is split between two takes; bytes that are
        not UTF-8 are replaced.
        """
        run = await self.run(run_id)
        offset, size = run.read, await self.size(run_id)
        data = await self.read(run_id, offset, limit)
        more = offset + len(data) < size
        if more:
            data = data[: data.rfind(b"\n", -NEAR) + 1] or data
        text, used = clean_output(data, final=not more and run.status != "running")
        if more and not used:  # a take that takes nothing would never end
            text, used = clean_output(data, final=True)
        await self.taken(run_id, offset + used)
        return text, more

    async def taken(self, run_id: int, offset: int) -> None:
        """The model has been given the output up to `offset`."""
        run = await self.run(run_id)
        if run.read != offset:
            run.read = offset
            self._save(run)

    async def grown(self, run_id: int, beyond: int, timeout: float, *, whole: bool = False) -> int:
        """The size of the output, once it is over `beyond`, the command has ended (with `whole`, all that it started),
        or `timeout` seconds have passed."""
        running = self._running.get(run_id)
        if running is not None:
            await running.wait_output(beyond, timeout, whole=whole)
        return await self.size(run_id)

    async def wait_shell(self, run_id: int, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the command itself to end, whatever it leaves running: has it?"""
        await self.run(run_id)
        running = self._running.get(run_id)
        return running is None or await running.wait_shell(timeout)

    async def wait(self, run_id: int, timeout: float) -> bool:
        """Wait at most `timeout` seconds until nothing of the run's tree is left: is it so?"""
        await self.run(run_id)
        running = self._running.get(run_id)
        return running is None or await running.wait(timeout)

    async def kill(self, run_id: int, grace: float = GRACE) -> Run:
        """End the whole tree, SIGKILL following SIGTERM after `grace` seconds; how it ended.

        What had ended stays as it was. What can't be killed is still `running` in the answer.
        """
        run = await self.run(run_id)
        running = self._running.get(run_id)
        if running is not None:
            running.terminate(grace=grace)
            await running.wait(grace + KILL_WITHIN)
        return run

    async def kill_all(self) -> None:
        """End all that runs here."""
        await asyncio.gather(*(self.kill(run_id) for run_id in list(self._running)))

    async def keep(self, run_id: int) -> bool:
        """Leave a foreground run to the retention limit. One that goes on is a background task from now on; False:
        there were too many of those, and it was ended."""
        run = await self.run(run_id)
        goes_on = run.status == "running" and not run.background
        is_welcome = not goes_on or self.limits.has_room
        if not is_welcome:
            await self.kill(run_id)
        run.background = run.background or run.status == "running"
        self._save(run)
        self._attended.discard(run_id)
        if run.background:
            self.limits.limit_age(run_id)
            self._notify_arrival()
        self._retain()
        return is_welcome

    async def forget(self, run_id: int) -> None:
        """Remove a run that ended, and its output."""
        if run_id not in self._running and self._runs.pop(run_id, None) is not None:
            self._attended.discard(run_id)
            self._unkept.pop(run_id, None)
            self._remove_later(run_id)

    def _remove_later(self, run_id: int) -> None:
        removing = asyncio.ensure_future(asyncio.to_thread(self._remove, run_id))
        self._removing.add(removing)
        removing.add_done_callback(self._removing.discard)

    def _remove(self, run_id: int) -> None:
        self._spool.forget(run_id)
        if self._command_environment.cwd_folder is not None:
            files.remove(self._cwd_file(run_id))

    def told(self, run_id: int) -> None:
        """The model knows how this background task ended: it needs no notice."""
        self._notices.drop(f"bg-{run_id}")

    def output_path(self, run_id: int) -> Path | None:
        """The file that holds a run's output, readable by the next command; None if the disk was full as it began."""
        return None if run_id in self._unkept else self._spool.path(run_id, "output")

    async def landed(self, run_id: int) -> Path | None:
        """The directory a foreground command ended in, where it said so and that exists."""
        return cwd_tracking.read_cwd(self._cwd_file(run_id), must_exist=self._command_environment.cwd_folder is None)

    async def read_file(self, path: str, limit: int, *, anywhere: bool) -> bytes:
        """A regular file's bytes. `path` is absolute and, unless `anywhere`, inside the root with links resolved.

        Raises ToolError for what is not so, for what is no regular file, and for more than `limit` bytes.
        """
        await self._open()
        reach = None if anywhere else self.root
        async with self._reading:
            return await asyncio.to_thread(files.read, path, limit, reach, self._private, self._command_environment.uid)

    async def open_file(self, path: str, limit: int, *, anywhere: bool) -> OpenFile:
        """The same file to be read piece by piece. Raises ToolError."""
        await self._open()
        reach = None if anywhere else self.root
        return await asyncio.to_thread(
            files.open_regular, path, limit, reach, self._private, self._command_environment.uid
        )

    async def look(self, path: str) -> files.FileEntry:
        """What there is at the absolute `path`, links followed. Raises NotFound, also for what is outside the root."""
        return await asyncio.to_thread(files.stat_path, path, self.root, self._private)

    async def entries(self, path: str, limit: int) -> tuple[Sequence[files.FileEntry], bool]:
        """What is in a folder, at most `limit` by name, and whether there is more. Raises NotFound and ToolError."""
        return await asyncio.to_thread(files.entries, path, self.root, limit, self._private)

    async def resolve(self, path: str) -> Path:
        """Where the absolute `path` leads, there or not. Raises NotFound for what is outside the root."""
        return Path(await asyncio.to_thread(files.resolve_inside, path, self.root, self._private))

    def check_file(self, path: str, *, suffix: str) -> None:
        """Refuse a path that `write_file` would refuse whatever is on disk. Raises ToolError."""
        files.split_path(path, self.root, suffix)

    async def write_file(self, path: str, data: bytes, *, suffix: str) -> Path:
        """Write a file below the root, whole or not at all, and give its path. Raises ToolError.

        `path` is relative to the root, or absolute and inside it; its name ends in `suffix`; links are not followed.
        """
        await self._open()
        return await asyncio.to_thread(files.write, path, data, self.root, suffix, self._command_environment.uid)

    async def close(self, grace: float) -> None:
        """End every tree: SIGTERM, SIGKILL after `grace` seconds. Done within a fifth of a second of that."""
        self._closed = True
        self.limits.close()
        if self._opening is not None:
            await asyncio.wait([self._opening], timeout=grace + CLOSE_WITHIN)
        still = [*self._running.values()]
        for running in still:
            running.terminate("the server stopped", grace)
        gone = asyncio.gather(*(running.wait(grace + CLOSE_WITHIN) for running in still))
        await asyncio.wait([gone], timeout=grace + CLOSE_WITHIN)
        for running in still:
            running.abandon()
        await asyncio.wait([gone], timeout=CLOSE_WITHIN)
        gone.cancel()
        await self._command_environment.close()
        if self._removing:
            await asyncio.wait(self._removing, timeout=CLOSE_WITHIN)
        self._spool.close()

    def _notify_arrival(self) -> None:
        self._arriving.set()
        self._arriving = asyncio.Event()

    async def _open(self) -> dict[int, Run]:
        """Every run, by id; the first time, after moving in and looking through what earlier servers left."""
        if not self._opened:
            self._opening = self._opening or asyncio.ensure_future(self._open_spool())
            await asyncio.shield(self._opening)  # one look serves all, whoever of them is cancelled
        return self._runs

    async def _open_spool(self) -> None:
        try:
            earlier = await self._opener.run(self._move_in)
        except OSError as error:
            self._opening = None  # another time, perhaps
            raise _no_room(error) from None
        self._runs.update((run.id, run) for run in earlier)
        self._opened = True

    def _move_in(self) -> Sequence[Run]:
        """The runs of earlier servers. Blocking."""
        self._command_environment.prepare()  # there may be a tree to give to another user
        self._spool.reader = self._command_environment.uid
        return self._spool.open(self._command_environment.end_leftovers)  # may have large files to remove

    def _admit(self, command: str, background: bool) -> None:
        if self._closed:
            raise ToolError("the server is shutting down: nothing more is started")
        self.limits.check_start(background=background)
        try:
            size = len(command.encode())
        except UnicodeEncodeError:
            raise ToolError("the command holds half of a surrogate pair, which is no character") from None
        if "\0" in command:
            raise ToolError(r"the command holds a NUL character, which no command line can: write $'\0' or \0")
        if size > MAX_COMMAND:
            raise ToolError(f"the command is {size:,} bytes, over {MAX_COMMAND:,}: write it to a file, run that")

    def _claim(self, command: str, key: str | None, background: bool) -> RunningCommand:
        """An id, and files to go with it."""
        try:
            run, output = self._claim_output(command, key, background)
        except OSError as error:
            raise _no_room(error) from None
        running = RunningCommand(run, output, self._on_end)
        self._runs[run.id] = run
        self._running[run.id] = running
        if not background:
            self._attended.add(run.id)
        return running

    def _claim_output(self, command: str, key: str | None, background: bool) -> tuple[Run, RunOutput]:
        """A spool that was removed is made anew; on a full disk old runs make room, or the new one does without."""
        try:
            return self._spool.claim(command, key, background)
        except FileNotFoundError:
            self._spool.open()  # there is nothing to look through
            return self._spool.claim(command, key, background)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._make_room()
        try:
            return self._spool.claim(command, key, background)
        except OSError as error:
            if error.errno not in FULL:
                raise
            run, output = self._spool.claim_in_memory(command, key, background)
            self._unkept[run.id] = output
            return run, output

    def _make_room(self) -> None:
        """Forget every run that ended and that nobody waits for."""
        old = [run_id for run_id in self._runs if run_id not in self._running and run_id not in self._attended]
        log.warning("there is no room in %s: forgetting %d tasks that ended", self._spool.folder, len(old))
        for run_id in old:
            del self._runs[run_id]
            self._unkept.pop(run_id, None)
            self._spool.forget(run_id)

    def _output(self, run_id: int) -> RunOutput | None:
        """Output that is not only in a file."""
        running = self._running.get(run_id)
        return running.output if running else self._unkept.get(run_id)

    def _tracked_variables(self, run: Run) -> Mapping[str, str]:
        """The environment of a command that may move its caller, if there is room to say where to."""
        rc, environment = self._spool.path(run.id, "rc"), self._command_environment.variables(self._variables)
        if run.id in self._unkept:
            return environment
        try:
            followed = cwd_tracking.add_cwd_trap(environment, rc, self._cwd_file(run.id))
            self._spool.share(rc)
            return followed
        except OSError as error:
            if error.errno not in FULL:
                raise
            return environment

    def _cwd_file(self, run_id: int) -> Path:
        """Where a command leaves word of where it is: in a sandbox where it may write."""
        places = self._command_environment.cwd_folder
        return self._spool.path(run_id, "cwd") if places is None else places / str(run_id)

    async def _begin(self, running: RunningCommand, command: str, cwd: Path, timeout: float | None) -> None:
        run = running.run
        try:
            quarters = self._command_environment
            await self.limits.remeasure()
            quarters.refresh()
            environment = quarters.variables(self._variables) if run.background else self._tracked_variables(run)
            launch = Launch(
                ["bash", "-c", command], cwd, self.root, environment, self.limits.resources, self.limits.is_full
            )
            await running.begin(quarters.runner, launch, timeout)
            self.limits.command_started()
        except BaseException as error:
            del self._running[run.id]
            await self.forget(run.id)
            if isinstance(error, CommandStartError):
                raise ToolError(f"the command was not started: {error}") from None
            if isinstance(error, OSError):
                raise _no_room(error) from None
            raise

    def _last_words(self, run: Run) -> str:
        """The end of what a run said that failed."""
        begin = max(0, run.size - MAX_TAIL)
        return clean_output(self._spool.read(run.id, begin, MAX_TAIL), final=True)[0] if run.exit_code else ""

    def _on_end(self, running: RunningCommand) -> None:
        run = running.run
        self.limits.command_ended()
        del self._running[run.id]
        if run.background:
            self.limits.find_reached(run, self._last_words(run))
            self._save(run)
            if not running.is_ending or run.reason is not None:
                name = shorten_command(run.command, NAMED)
                self._notices.add(
                    f"bg-{run.id}",
                    f"background task {run.id} ({name}) {describe_end(run)}; read it with ReadBgOutput",
                    NOTICE_SCOPE,
                )
        self._retain()

    def _retain(self) -> None:
        """Forget old runs that nobody needs."""
        needed = self._running.keys() | self._attended
        for run_id in self._spool.choose_forgotten(run for run in self._runs.values() if run.id not in needed):
            del self._runs[run_id]
            self._unkept.pop(run_id, None)
            self._remove_later(run_id)

    def _save(self, run: Run) -> None:
        if run.id in self._unkept:
            return
        try:
            self._spool.save(run)
        except OSError as error:  # it is worth having after a restart, no more
            log.warning("task %d is not saved: %s", run.id, error.strerror)


def _no_room(error: OSError) -> ToolError:
    why = (error.strerror or str(error)).lower()
    where = f" ({error.filename})" if error.filename else ""
    return ToolError(f"there is no place for the command and its output: {why}{where}")
