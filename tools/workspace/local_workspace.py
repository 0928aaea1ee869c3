"""Run a principal's commands and reach its files on this machine."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.tools.api.context.services import ProgramResult
from toolgate.tools.api.context.spans import span
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.commands import cwd_tracking
from toolgate.tools.workspace.commands.environment import CommandEnvironment
from toolgate.tools.workspace.commands.limit_checks import LimitChecks
from toolgate.tools.workspace.commands.login_path import MAX_OUTPUT, LoginPath
from toolgate.tools.workspace.commands.run import RunningCommand
from toolgate.tools.workspace.commands.runs import RunStore, no_room
from toolgate.tools.workspace.commands.text import normalize_command, open_command
from toolgate.tools.workspace.files import access as files
from toolgate.tools.workspace.files.open_file import LocalFile
from toolgate.tools.workspace.idle_timer import IdleTimer
from toolgate.tools.workspace.output.ansi import clean_output
from toolgate.tools.workspace.output.decoder import find_cut
from toolgate.tools.workspace.output.run_record import OutputReader, Run, TaskEnd
from toolgate.tools.workspace.output.spool import CWD_FOLDER
from toolgate.tools.workspace.output.text import Excerpt, make_excerpt
from toolgate.tools.workspace.processes.process import LATE_INSIDE, CommandStartError, Launch
from toolgate.tools.workspace.workspace import GRACE, Conclusion, NewOutput, ProgramAccess, output_path

if TYPE_CHECKING:
    from toolgate.tools.workspace.commands.local_program import LocalProgram
    from toolgate.tools.workspace.commands.program import Programs

KILL_WITHIN = LATE_INSIDE + 2.0  # seconds for a tree to end after SIGKILL or with its sandbox, unless another user's
CLOSE_WITHIN = 0.15  # the same, at shutdown
SETTLE = 5.0  # seconds for a killed tree to end: SIGTERM, 2 s, SIGKILL, and some margin
LINGER = 0.1  # seconds for children such as `> >(tee log)` to end by themselves
READS = 2  # concurrent file reads of one principal: each file is in memory whole


class LocalWorkspace:
    """A Workspace on this machine. `spool` is a private folder for output, `variables` are those of commands.

    `private` is the server's own folder, never read even inside the root. Commands run in `command_environment`, within
    its limits, with the PATH of `login_shell`. `on_task_end` is called with each background task that ended, also with
    an earlier server, until the end is confirmed.
    """

    def __init__(
        self,
        root: Path,
        spool: Path,
        variables: Mapping[str, str],
        on_task_end: Callable[[TaskEnd], None],
        *,
        command_environment: CommandEnvironment,
        private: Path | None = None,
        login_shell: str | None = None,
        on_open: Callable[[], None] = lambda: None,
        on_close: Callable[[], None] = lambda: None,
        linger: float = LINGER,
    ) -> None:
        """`on_open` is called at each use, `on_close` when it is closed because it is idle. A command's result waits
        `linger` seconds for processes that the command leaves running."""
        self.root = Path(os.path.realpath(root))  # as `pwd -P` would say it
        self.output_folder = spool
        self.sandbox = command_environment.level
        self._environment = command_environment
        self._variables = {name: value for name, value in variables.items() if name != cwd_tracking.PREVIOUS}
        self._on_task_end = on_task_end
        own = Path(os.path.realpath(private)) if private is not None else None
        self.private_folder = None if own is None or self.root.is_relative_to(own) else own
        self._on_open = on_open
        self._on_close = on_close
        self._linger = linger
        self._login_path = None if login_shell is None else LoginPath(login_shell, self._run_login_shell)
        self._idle = IdleTimer(command_environment.limits.idle, self._is_busy, self._close_idle)
        self._runs = RunStore(spool, command_environment, partial(self._report_end, is_earlier=True), self._note_use)
        self._live = self._runs.live
        self.limits = LimitChecks(command_environment, self.root, spool / CWD_FOLDER, self._live)
        self._programs: Programs | None = None
        self._reading = asyncio.Semaphore(READS)
        self.isolates_environment = command_environment.isolates_programs
        self.arrivals = 0  # of background tasks
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
        previous: Path | None = None,
        on_claim: Callable[[int], None] | None = None,
    ) -> int:
        """`on_claim` gets the id before the command starts: `withdraw` takes it."""
        await self._runs.open()
        earlier = self._runs.find_key(key)
        if earlier in self._live:
            await asyncio.wait([self._live[earlier].start_done])  # it stays when this call is cancelled
            await self._runs.open()
        if earlier is not None and earlier == self._runs.find_key(key):  # it could be started
            return earlier
        command = normalize_command(command)
        self._admit(background)
        run, output = self._runs.claim(command, key, background=background, read_only=read_only)
        running = RunningCommand(run, output, self._on_end)
        self._live[running.run.id] = running
        if on_claim is not None:
            on_claim(run.id)
        with span("start command"):
            await self._begin(running, command, cwd or self.root, previous, timeout)
        if background:
            self.limits.limit_age(running.run.id)
            self._notify_arrival()
        return running.run.id

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
        clock = asyncio.get_running_loop().time
        until = clock() + wait
        run_id = await self.start(command, cwd=cwd, timeout=timeout, read_only=read_only, previous=previous)
        try:
            if await self.wait_shell(run_id, max(0.0, until - clock())):
                return run_id, await self.conclude(run_id, limit=limit)
            self._runs.store(run_id)
            return run_id, None
        except BaseException:  # above all a cancellation
            await asyncio.shield(self.discard(run_id))
            raise

    async def conclude(
        self, run_id: int, *, limit: int, keeps_output: bool = False, reader: OutputReader | None = None
    ) -> Conclusion:
        """Conclude a run for a `reader`, by default this server. `keeps_output`: also output that the conclusion holds
        whole stays, until `forget`."""
        run = await self._find(run_id)
        is_dying = run.reason is not None  # killed by us: its remains are no background task
        ended = await self.wait_shell(run_id, SETTLE if is_dying else 0.0)
        seconds = max(0.0, time.time() - run.started)
        is_ending = is_dying or run.left == 0 or run.read_only
        gone = ended and await self.wait(run_id, SETTLE if is_ending else self._linger)
        if gone:
            await self._runs.temporary_folders.wait_removed(run_id)
        refused = None if gone else await self.keep(run_id)  # before any other wait: now its end is a task's
        gone = gone or refused is not None
        place = self._read_directories(run_id)
        if ended and place is None:
            self._runs.store(run_id)  # notes whether the disk is full
        reader = reader or self._runs.create_reader()
        excerpt = await self._take_excerpt(run, limit, reader, final=gone, keeps_output=keeps_output)
        self.limits.find_reached(run, excerpt.text)
        cwd, previous = (None, None) if place is None else (place.cwd, place.previous)
        return Conclusion(run.copy(), ended, gone, refused, seconds, cwd, excerpt, previous)

    async def find_read_only_obstacle(self) -> str | None:
        if not self._can_read_only:
            why = await asyncio.to_thread(self._environment.find_read_only_obstacle)
            if why is not None:
                return why
            self._can_read_only = True
        return None

    async def run(self, run_id: int) -> Run:
        return (await self._find(run_id)).copy()

    def running(self) -> Sequence[Run]:
        """Return the running commands as they are now."""
        return [running.run.copy() for running in self._live.values()]

    async def list(self) -> list[Run]:
        runs = await self._runs.open()
        return [run.copy() for _, run in sorted(runs.items()) if run.background]

    async def arrival(self) -> None:
        await self._arriving.wait()

    async def adopt(self, run_id: int) -> None:
        """Make a foreground run whose caller is gone a background task, also if it has ended, and report it."""
        refused = await self.keep(run_id)
        run = await self._find(run_id)
        run.reason = run.reason or refused
        if not run.background:  # it has ended
            run.background = run.is_report_due = True
            self._notify_arrival()
        self._runs.save(run)
        self._report_end(run)

    async def read(self, run_id: int, offset: int, limit: int) -> bytes:
        await self._find(run_id)
        return self._runs.read(run_id, offset, limit)

    async def size(self, run_id: int) -> int:
        await self._find(run_id)
        return self._runs.size(run_id)

    async def take(self, run_id: int, limit: int, *, reader: OutputReader | None = None) -> NewOutput:
        """Take output for a `reader`, by default this server."""
        run, reader = await self._find(run_id), reader or self._runs.create_reader()
        is_repeated = run.read_from < run.read and run.reader not in ("", reader.name) and reader.is_gone(run.reader)
        offset, size = run.read_from if is_repeated else run.read, await self.size(run_id)
        if offset == size:
            self._append_end(run_id)
            size = await self.size(run_id)
        data = await self.read(run_id, offset, limit)
        more = offset + len(data) < size
        if more:
            data = data[: find_cut(data)] or data
        text, used = clean_output(data, final=not more and run.status != "running")
        if more and not used:  # an empty take would be repeated for ever
            text, used = clean_output(data, final=True)
        self._runs.mark_read(run, offset, offset + used, reader)
        return NewOutput(run.copy(), text, more, is_repeated)

    async def mark_read(self, run_id: int, offset: int) -> None:
        run = await self._find(run_id)
        self._runs.mark_read(run, run.read, max(0, offset), self._runs.create_reader())

    async def confirm_reads(self, reader: str) -> None:
        """Note that a reader ends in order: it has sent its answers."""
        await self._runs.open()
        self._runs.confirm_reads(reader)

    async def wait_output(self, run_id: int, beyond: int, timeout: float, *, whole: bool = False) -> int:
        running = self._live.get(run_id)
        if running is not None:
            await running.wait_output(beyond, timeout, whole=whole)
        return await self.size(run_id)

    async def wait_shell(self, run_id: int, timeout: float) -> bool:
        await self._find(run_id)
        running = self._live.get(run_id)
        return running is None or await running.wait_shell(timeout)

    async def wait(self, run_id: int, timeout: float) -> bool:
        await self._find(run_id)
        running = self._live.get(run_id)
        return running is None or await running.wait(timeout)

    async def kill(self, run_id: int, grace: float = GRACE) -> Run:
        run = await self._find(run_id)
        running = self._live.get(run_id)
        if running is not None:
            running.terminate(grace=grace)
            await running.wait(grace + KILL_WITHIN)
        return run.copy()

    def withdraw(self, run_id: int) -> None:
        """End a command if it waits for its sandbox to start: its caller is gone."""
        running = self._live.get(run_id)
        if running is not None:
            running.withdraw()

    async def kill_all(self) -> None:
        """End all runs and programs."""
        if self._programs is not None:
            self._programs.kill()
        runs = (self.kill(run_id) for run_id in list(self._live))
        await asyncio.gather(*runs, self.end_programs("all that ran was ended"))

    async def end_programs(self, reason: str) -> None:
        """End the programs whose streams a caller holds."""
        programs = [*self.limits.programs]
        for program in programs:
            program.terminate(reason, 0.0)
        await asyncio.gather(*(program.wait_gone(KILL_WITHIN) for program in programs))

    async def keep(self, run_id: int) -> str | None:
        run = await self._find(run_id)
        self._runs.store(run_id)
        goes_on = run.status == "running" and not run.background
        refused = self.limits.too_many_tasks if goes_on and not self.limits.has_room else None
        if refused is not None:
            await self.kill(run_id)
        run.background = run.background or run.status == "running"
        self._runs.save(run)
        self._runs.attended.discard(run_id)
        if run.background:
            self.limits.limit_age(run_id)
            self._notify_arrival()
        self._runs.forget_old()
        return refused

    async def forget(self, run_id: int) -> None:
        self._runs.forget(run_id)

    async def discard(self, run_id: int) -> None:
        await self.kill(run_id)
        await self.forget(run_id)

    async def read_cwd(self, run_id: int) -> Path | None:
        place = self._read_directories(run_id)
        return None if place is None else place.cwd

    def _read_directories(self, run_id: int) -> cwd_tracking.Directories | None:
        return cwd_tracking.read_directories(self._runs.cwd_file(run_id), must_exist=self.sandbox == "none")

    async def read_file(self, path: str, limit: int, *, anywhere: bool) -> bytes:
        await self._runs.open()
        reach = None if anywhere else self.root
        async with self._reading:
            return await asyncio.to_thread(files.read, path, limit, reach, self.private_folder, self._environment.uid)

    async def open_file(self, path: str, limit: int, *, anywhere: bool) -> LocalFile:
        await self._runs.open()
        reach = None if anywhere else self.root
        return await asyncio.to_thread(
            files.open_regular, path, limit, reach, self.private_folder, self._environment.uid
        )

    async def stat_path(self, path: str) -> files.FileEntry:
        return await asyncio.to_thread(files.stat_path, path, self.root, self.private_folder)

    async def entries(self, path: str, limit: int) -> tuple[Sequence[files.FileEntry], bool]:
        return await asyncio.to_thread(files.entries, path, self.root, limit, self.private_folder)

    async def resolve(self, path: str) -> Path:
        return Path(await asyncio.to_thread(files.resolve_inside, path, self.root, self.private_folder))

    def check_file(self, path: str, *, suffix: str) -> None:
        files.split_path(path, self.root, suffix)

    async def write_file(self, path: str, data: bytes, *, suffix: str) -> Path:
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
        await self._runs.open()
        self._refuse_at_end()
        from toolgate.tools.workspace.commands.program import Programs  # start-up: for plugins

        self._programs = self._programs or Programs(
            self._environment, self.limits, self.root, self._variables, str(self.output_folder)
        )
        return await self._programs.run(argv, given, limit, timeout, changes_files=changes_files)

    async def open_program(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        shows: Sequence[Path] = (),
        access: ProgramAccess | None = None,
    ) -> "LocalProgram":
        await self._runs.open()
        self._refuse_at_end()
        variables = await self._find_variables()
        from toolgate.tools.workspace.commands.program_streams import ProgramStreams  # start-up: for mounts

        streams = ProgramStreams(self._environment, self.limits, self.root, str(self.output_folder))
        return await streams.open(argv, variables, env, cwd, shows, access)

    async def _find_variables(self) -> Mapping[str, str]:
        """Return the variables of commands, with the PATH of the login shell."""
        given = self._variables
        return given if self._login_path is None else await self._login_path.extend(given)

    def _refuse_at_end(self) -> None:
        if self._closed:
            raise ToolError("the server is shutting down: nothing more is started")

    async def _run_login_shell(self, argv: Sequence[str], timeout: float) -> ProgramResult:
        return await self.run_program(argv, limit=MAX_OUTPUT, timeout=timeout)

    def _note_use(self) -> None:
        self._idle.note_use()
        self._on_open()

    def _is_busy(self) -> bool:
        programs = self._programs is not None and self._programs.are_running
        return (
            programs
            or bool(self.limits.programs)
            or self.limits.is_measuring
            or self._environment.is_running
            or not self._runs.is_idle
        )

    def _close_idle(self) -> None:
        """Give up descriptors and control group until the next use."""
        self._runs.close_idle()
        self._on_close()

    async def close(self, grace: float) -> None:
        """End every tree: SIGTERM, and SIGKILL after `grace` seconds. It takes at most 0.2 s more."""
        self._closed = True
        self._idle.cancel()
        if self._login_path is not None:
            self._login_path.close()
        if self._programs is not None:
            self._programs.abandon()
        self.limits.close()
        await self._runs.wait_opening(grace + CLOSE_WITHIN)
        commands, programs = [*self._live.values()], [*self.limits.programs]
        still: Sequence[RunningCommand | LocalProgram] = [*commands, *programs]
        for each in still:
            each.terminate("the server stopped", grace)
        ends = (
            *(each.wait(grace + CLOSE_WITHIN) for each in commands),
            *(each.wait_gone(grace + CLOSE_WITHIN) for each in programs),
        )
        gone = asyncio.gather(*ends)
        await asyncio.wait([gone], timeout=grace + CLOSE_WITHIN)
        for each in still:
            each.abandon()
        await asyncio.wait([gone], timeout=CLOSE_WITHIN)
        gone.cancel()
        await self._environment.close()
        await self._runs.close(CLOSE_WITHIN)

    async def _find(self, run_id: int) -> Run:
        """Return the run itself, which changes."""
        return (await self._runs.open())[run_id]

    async def _take_excerpt(
        self, run: Run, limit: int, reader: OutputReader, *, final: bool, keeps_output: bool
    ) -> Excerpt:
        """Return the output to show, and remove what is not needed after that. `final`: no more comes."""
        self._append_end(run.id)
        size = await self.size(run.id)
        if size > limit:  # the excerpt names the file
            self._runs.store(run.id)
        path = output_path(self, run)
        excerpt = await make_excerpt(partial(self.read, run.id), size, limit, _note_rest(run, path), final=final)
        if not final:
            self._runs.mark_read(run, 0, excerpt.used_bytes, reader)
        elif excerpt.dropped_characters and path:
            await self.keep(run.id)
        elif not keeps_output:
            await self.forget(run.id)
        return excerpt

    def _append_end(self, run_id: int) -> None:
        """Let a reader have the end of a long output, as far as its command has come."""
        running = self._live.get(run_id)
        if running is not None:
            running.output.append_end(final=False)

    def _notify_arrival(self) -> None:
        self.arrivals += 1
        self._arriving.set()
        self._arriving = asyncio.Event()

    def _admit(self, background: bool) -> None:
        self._refuse_at_end()
        self.limits.check_start(background=background)

    async def _begin(
        self, running: RunningCommand, command: str, cwd: Path, previous: Path | None, timeout: float | None
    ) -> None:
        run, place = running.run, self._environment
        try:
            await self.limits.remeasure()
            place.refresh()
            variables = place.variables(await self._find_variables())
            runner, read_only, limits = place.runner, None, self.limits.resources
            if run.read_only:
                why = await self.find_read_only_obstacle()  # a node may have restarted since it was asked
                if why is not None:
                    raise CommandStartError(f"it can't be made read-only: {why}")
                writable, temporary = self._runs.make_writable(run, running.terminate)
                runner, read_only = place.prepare_read_only(writable)
                if temporary is not None:
                    variables = {**variables, "TMPDIR": str(temporary)}
                    limits = self._runs.temporary_folders.limit_files(limits)
            variables = self._runs.prepare_variables(run, variables, previous)
            is_full, owner = self.limits.is_full and not run.read_only, str(self.output_folder)
            with open_command(command) as (argv, stdin):
                is_brief = not run.background
                launch = Launch(argv, cwd, self.root, variables, limits, is_full, read_only, owner, is_brief)
                await running.begin(runner, launch, timeout, stdin)
            self.limits.command_started()  # not before: a command that waits for its sandbox changes nothing
        except BaseException as error:
            del self._live[run.id]
            self._runs.temporary_folders.start_removing(run.id)
            await self.forget(run.id)
            if isinstance(error, CommandStartError):
                self._idle.hurry()  # a person whose sandbox can't start holds nothing
                raise ToolError(f"the command was not started: {error}") from None
            if isinstance(error, OSError):
                raise no_room(error) from None
            raise

    def _on_end(self, running: RunningCommand) -> None:
        run = running.run
        self.limits.command_ended()
        del self._live[run.id]
        self._runs.keep_output(run.id, running.output)
        if run.read_only:
            cwd_tracking.empty_if_large(self._runs.cwd_file(run.id))
            self._runs.temporary_folders.start_removing(run.id)
        if run.background:
            self.limits.find_reached(run, self._runs.read_tail(run))
            run.is_report_due = True
            self._runs.save(run)
            self._report_end(run)
        self._runs.forget_old()

    def _report_end(self, run: Run, *, is_earlier: bool = False) -> None:
        def confirm() -> None:
            if reported.status != "running":  # else its end is another report
                self._runs.confirm_report(reported.id)

        reported = run.copy()
        self._on_task_end(TaskEnd(reported, confirm, is_earlier))


def _note_rest(run: Run, path: Path | None) -> str:
    """Say where the rest of a run's output is."""
    if path is None:
        return "they are not in a file"
    if run.kept is None:
        return f"all of it is in {path}"
    return f"its first {run.kept:,} bytes and its end are in {path}"
