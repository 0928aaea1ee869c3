"""Keep the runs of a principal: their ids and output, the living ones, and which to forget."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from toolgate.tools.api.concurrency.threads import Threads
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.commands import cwd_tracking, editors
from toolgate.tools.workspace.commands.environment import CommandEnvironment
from toolgate.tools.workspace.commands.run import RunningCommand
from toolgate.tools.workspace.commands.temporary_folders import TemporaryFolders, remove_leftover
from toolgate.tools.workspace.files import access as files
from toolgate.tools.workspace.output.ansi import clean_output
from toolgate.tools.workspace.output.run_output import FULL, FileOutput, RunOutput
from toolgate.tools.workspace.output.run_record import OutputReader, Run
from toolgate.tools.workspace.output.spool import Spool

REMOVE_DELAY = 0.05  # seconds: after the answer, and several runs at once
MAX_TAIL = 4096  # bytes of output that may show a reached limit

T = TypeVar("T")

log = logging.getLogger(__name__)


class RunStore:
    """The runs of a principal. `live` have not ended; `attended` are foreground runs that a call still waits for.
    Neither kind is ever forgotten. `on_earlier` is called with each run of an earlier server whose end is to report."""

    def __init__(
        self,
        spool: Path,
        environment: CommandEnvironment,
        on_earlier: Callable[[Run], None],
        on_use: Callable[[], None],
    ) -> None:
        """`on_use` is called at each use of the runs."""
        self.live: dict[int, RunningCommand] = {}
        self.attended: set[int] = set()
        self._environment = environment
        self._on_earlier = on_earlier
        self._on_use = on_use
        self._spool = Spool(spool)
        self.temporary_folders = TemporaryFolders(environment, lambda run_id: self._spool.folder / str(run_id))
        self._runs: dict[int, Run] = {}  # of this server and of earlier ones
        self._in_memory: dict[int, RunOutput] = {}  # output of ended runs that is in no file
        self._prepared: tuple[Mapping[str, str], Path | None, Mapping[str, str]] | None = (
            None  # as for the last command
        )
        self._folders: set[int] = set()  # ids of runs that have one
        self._unneeded: list[tuple[int, bool]] = []  # runs to remove soon, and whether they have a folder
        self._removing: set[asyncio.Future[None]] = set()
        self._is_open = False
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None  # while nothing uses it
        self._opener = Threads(1)  # a hanging disk must not delay the server's end

    async def open(self) -> dict[int, Run]:
        """Return every run, by id. The first call opens the folders and reads earlier servers' runs."""
        while not self._is_open:
            self._opening = self._opening or asyncio.ensure_future(self._open_spool())
            await asyncio.shield(self._opening)  # shared by all callers, whichever is cancelled
        self._on_use()
        return self._runs

    async def wait_opening(self, timeout: float) -> None:
        """Wait until the folders are open or closed."""
        under_way = [task for task in (self._opening, self._closing) if task is not None]
        if under_way:
            await asyncio.wait(under_way, timeout=timeout)

    async def _open_spool(self) -> None:
        if self._closing is not None:
            await asyncio.wait([self._closing])
        try:
            earlier = await self._opener.run(self._read_earlier)
        except OSError as error:
            self._opening = None  # the next call tries again
            raise no_room(error) from None
        self._runs.update((run.id, run) for run in earlier)
        self._folders.update(run.id for run in earlier)
        self._is_open = True
        for run in earlier:
            if run.is_report_due:
                self._on_earlier(run)

    @property
    def is_idle(self) -> bool:
        """Whether nothing uses the runs, all of them are on disk, and their ends are reported."""
        is_used = self.live or self.attended or self._in_memory or self._unneeded or self._removing
        is_busy = is_used or self.temporary_folders.is_busy
        return self._is_open and not is_busy and not any(run.is_report_due for run in self._runs.values())

    def close_idle(self) -> None:
        """Close the folders while nothing uses them. The next `open` opens them again."""
        self.confirm_reads(self._spool.name)
        self._is_open, self._opening = False, None
        self._runs, self._folders = {}, set()
        self._closing = asyncio.ensure_future(self._opener.run(self._close_folders))
        self._closing.add_done_callback(self._note_closed)

    def _close_folders(self) -> None:
        self._spool.close()
        self._environment.release()

    def _note_closed(self, closing: "asyncio.Task[None]") -> None:
        if not closing.cancelled() and (error := closing.exception()) is not None:
            log.warning("what %s had open can't all be closed: %s", self._spool.folder.name, error)

    def _read_earlier(self) -> Sequence[Run]:
        """Return the runs of earlier servers. Blocking."""
        self._environment.prepare()  # may have to change a tree's owner
        self._spool.reader = self._environment.uid
        earlier = self._spool.open(self._environment.end_leftovers)  # may have to remove large files
        for run in earlier:
            remove_leftover(self._spool.folder / str(run.id))
        return earlier

    def find_key(self, key: str | None) -> int | None:
        """Return the id of the run that was started with `key`."""
        return next((run.id for run in self._runs.values() if key is not None and run.key == key), None)

    def claim(self, command: str, key: str | None, *, background: bool, read_only: bool) -> tuple[Run, RunOutput]:
        """Return a new run under the next id, and its output. Raises ToolError.

        Nothing of it is stored before it goes on, or prints more than a little: after a restart no one asks for a
        command that had ended. A call with a key may be repeated, a read-only command needs a file of its own, and on a
        full disk old runs make room.
        """
        try:
            run = self._in_spool(lambda: self._spool.claim(command, key, background))
        except OSError as error:
            raise no_room(error) from None
        run.read_only = read_only
        output = RunOutput(partial(self._create_file, run))
        if background or read_only or key is not None or not self._spool.has_room:
            output.store()
            run.in_memory = output.failure is not None
            if output.failure is not None and output.failure.errno not in FULL:
                raise no_room(output.failure)
        self._runs[run.id] = run
        if not background:
            self.attended.add(run.id)
        return run, output

    def store(self, run_id: int) -> None:
        """Move the output of a run to its file, if the disk has room."""
        output = self._output(run_id)
        if output is None:
            return
        output.store()
        self._runs[run_id].in_memory = output.failure is not None
        if run_id in self._in_memory and output.is_stored:
            output.close()
            del self._in_memory[run_id]

    def _create_file(self, run: Run) -> FileOutput:
        """Create the file of a run's output. On a full disk old runs make room. Raises OSError."""
        try:
            output = self._in_spool(lambda: self._spool.create_output(run))
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._make_room()
            output = self._spool.create_output(run)
        self._folders.add(run.id)
        return output

    def _in_spool(self, do: Callable[[], T]) -> T:
        """Return what `do` returns. If the folder of the runs was removed, or a part of it, make it again."""
        try:
            return do()
        except FileNotFoundError:
            self._spool.reopen()
            return do()

    def keep_output(self, run_id: int, output: RunOutput) -> None:
        """Keep the output of an ended run if it is in memory."""
        if not output.is_stored and run_id in self._runs:
            self._in_memory[run_id] = output

    def _make_room(self) -> None:
        """Forget every ended run that no call waits for."""
        old = [run_id for run_id in self._runs if run_id not in self.live and run_id not in self.attended]
        log.warning("the disk of %s is full: %d ended runs are removed", self._spool.folder, len(old))
        self._remove([self._drop(run_id) for run_id in old])

    def read(self, run_id: int, offset: int, limit: int) -> bytes:
        """Return at most `limit` bytes of output from byte `offset`. Raises ValueError for negative numbers."""
        if min(offset, limit) < 0:
            raise ValueError("no output has a negative offset or length")
        output = self._output(run_id)
        return output.read(offset, limit) if output else self._spool.read(run_id, offset, limit)

    def size(self, run_id: int) -> int:
        """Return the size of the output in bytes."""
        output = self._output(run_id)
        return output.size if output else self._spool.size(run_id)

    def read_tail(self, run: Run) -> str:
        """Return the end of the output of a run that failed."""
        begin = max(0, run.size - MAX_TAIL)
        return clean_output(self.read(run.id, begin, MAX_TAIL), final=True)[0] if run.exit_code else ""

    def _output(self, run_id: int) -> RunOutput | None:
        """Return the output of a living run or in memory, else None."""
        live = self.live.get(run_id)
        return live.output if live else self._in_memory.get(run_id)

    def prepare_variables(self, run: Run, variables: Mapping[str, str], previous: Path | None) -> Mapping[str, str]:
        """Return the variables of a command: with editors that end at once, with the `previous` directory for `cd -`,
        and, in the foreground, with what records the final directory. If the disk has no room, without what needs
        it."""
        editor = self._share(run, lambda: self._spool.share_file(editors.NAME, editors.PROGRAM, runs=True))
        if self._prepared is None or self._prepared[0] is not variables or self._prepared[1] != editor:
            self._prepared = variables, editor, editors.name_editors(variables, editor)
        variables = self._prepared[2]
        if previous is not None:
            variables = {**variables, cwd_tracking.PREVIOUS: str(previous)}
        rc = None if run.background else self._share(run, self._share_rc)
        return variables if rc is None else cwd_tracking.add_cwd_trap(variables, rc, self.cwd_file(run.id))

    def _share(self, run: Run, share: Callable[[], Path]) -> Path | None:
        """Return the file that `share` returns, or None if the disk has no room."""
        if run.in_memory:
            return None
        try:
            return self._in_spool(share)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return None

    def _share_rc(self) -> Path:
        """Return the file that a command reads first. Raises FileNotFoundError if the folder for records is gone."""
        self._spool.require_cwd_folder()
        return self._spool.share_file(cwd_tracking.RC_NAME, cwd_tracking.RC)

    def make_writable(self, run: Run, on_excess: Callable[[str], None]) -> tuple[list[Path], Path | None]:
        """Return what a read-only command may write: the file of its directory, and its folder for temporary files, and
        this folder alone. Without what the disk has no room for. `on_excess` is that of TemporaryFolders."""
        writable: list[Path] = []
        if run.in_memory:
            return writable, None
        cwd_file = self._spool.path(run.id, "cwd")
        try:
            files.make_empty(cwd_file, self._environment.uid)
            writable.append(cwd_file)
            temporary = self.temporary_folders.make(run.id, on_excess)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return writable, None
        return (writable, None) if temporary is None else ([*writable, temporary], temporary)

    def cwd_file(self, run_id: int) -> Path:
        """Return the file in which a command records its directory."""
        if run_id in self._runs and self._runs[run_id].read_only:
            return self._spool.path(run_id, "cwd")
        return self._spool.cwd_path(run_id)

    def save(self, run: Run) -> None:
        output = self._output(run.id)
        if output is not None and not output.is_stored:
            return
        try:
            self._spool.save(run)
        except OSError as error:  # it serves a restart alone
            log.warning("run %d is not saved: %s", run.id, error.strerror)

    def confirm_report(self, run_id: int) -> None:
        """Note that the end of a run is reported: no later server reports it again."""
        run = self._runs.get(run_id)
        if run is not None and run.is_report_due:
            run.is_report_due = False
            self.save(run)

    def create_reader(self) -> OutputReader:
        """Return this server as a reader. The runs of other servers are seen only after their end."""
        return OutputReader(self._spool.name, lambda name: name != self._spool.name)

    def mark_read(self, run: Run, begin: int, end: int, reader: OutputReader) -> None:
        """Note that a reader answers with the output from `begin` to `end`."""
        before = run.read_from, run.read, run.reader
        now = begin, end, reader.name if begin < end else run.reader
        if before != now:
            run.read_from, run.read, run.reader = now
            self.save(run)

    def confirm_reads(self, reader: str) -> None:
        """Note that a reader has sent its answers: it ends in order."""
        for run in self._runs.values():
            if run.reader == reader:
                run.reader = ""
                self.save(run)

    def forget(self, run_id: int) -> None:
        """Remove an ended run and its output."""
        if run_id not in self.live and run_id in self._runs:
            self._remove_later(self._drop(run_id))

    def forget_old(self) -> None:
        """Forget the runs beyond the retention limit."""
        needed = self.live.keys() | self.attended
        ended = [run for run in self._runs.values() if run.id not in needed]
        forgotten = self._spool.choose_forgotten(ended)
        self._spool.note_missed(ended, forgotten)
        for run_id in forgotten:
            self._remove_later(self._drop(run_id))

    def _drop(self, run_id: int) -> tuple[int, bool]:
        """Forget a run. Return what to remove: if it has no folder, one with its id is another server's."""
        has_folder = run_id in self._folders
        self._folders.discard(run_id)
        del self._runs[run_id]
        self.attended.discard(run_id)
        self._in_memory.pop(run_id, None)
        return run_id, has_folder

    def _remove_later(self, unneeded: tuple[int, bool]) -> None:
        if not self._unneeded:
            asyncio.get_running_loop().call_later(REMOVE_DELAY, self._start_removing)
        self._unneeded.append(unneeded)

    def _start_removing(self) -> None:
        if self._unneeded:
            removing = asyncio.get_running_loop().run_in_executor(None, self._remove, self._unneeded)
            self._unneeded = []
            self._removing.add(removing)
            removing.add_done_callback(self._removing.discard)

    def _remove(self, unneeded: list[tuple[int, bool]]) -> None:
        for run_id, has_folder in unneeded:
            if has_folder:
                self._spool.forget(run_id)
            files.remove(self.cwd_file(run_id))

    async def close(self, timeout: float) -> None:
        self.confirm_reads(self._spool.name)
        self._start_removing()
        if self._removing:
            await asyncio.wait(self._removing, timeout=timeout)
        await self.temporary_folders.wait_removed(timeout=timeout)
        self._spool.close()


def no_room(error: OSError) -> ToolError:
    """Return the error for a command without a folder or disk space."""
    why = (error.strerror or str(error)).lower()
    where = f" ({error.filename})" if error.filename else ""
    return ToolError(f"cannot store the output of the command: {why}{where}")
