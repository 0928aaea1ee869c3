"""Store the runs of a principal on disk: their ids, their output and how they ended.

    last-id             the last assigned id; also the lock for assigning ids and reading folders
    NAME.lock           held by a server while it lives
    ID/task.json        a Run
    ID/output           stdout and stderr in order, capped
    HASH.rc             what a command reads first (cwd_tracking.py)
    HASH.editor         the program that stands in for editors (editors.py)
    places/NAME-ID      the directory in which a command of a server ended (cwd_tracking.py)

A command that ends soon and prints little has no folder ID.

Several servers may share the folder (a desktop client starts one for each project). A server sees its own runs and
those of ended servers; it never touches those of another living one.
"""

import errno
import fcntl
import logging
import os
import stat
import time
from collections.abc import Callable, Container, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from toolgate.tools.api.regular_file import (
    allow_owner,
    open_regular,
    read_regular,
    remove_entry,
    write_regular,
)
from toolgate.tools.api.text.json_text import JsonError, decode_json
from toolgate.tools.workspace.files.safe_walk import open_folder
from toolgate.tools.workspace.output.run_output import FileOutput
from toolgate.tools.workspace.output.run_record import Run

KEPT = 50  # ended runs: a list that a model can still read
KEPT_FOR = 24 * 3600.0  # seconds: a day's work
KEPT_BYTES = 512 * 2**20  # of output of ended runs
KEPT_UNREPORTED = 1_000  # ended runs beside these whose end is not reported yet
MAX_TASK = 64 * 2**10  # bytes of a task.json; real ones have a few thousand
ROOM, FILES = 2**20, 16  # bytes and files of the disk that let a command begin without a file
LAST_ID = "last-id"
SHOWN = 1_000  # characters of a command kept for lists
SHARED = (".lock", ".rc", ".editor", ".new")  # how the names of its other files end
CWD_FOLDER = "places"  # where commands record their directory: in a sandbox, their only writable folder here

log = logging.getLogger(__name__)


class Spool:
    """The folder, as one server uses it. `reader` is the group whose members may read output, but nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reader: int | None = None
        self.name = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._lock = -1
        self._last = -1
        self._shared: dict[str, Path] = {}  # written by this server, by name
        self._highest = 0  # highest id assigned here: the disk may be full, or its files removed

    def open(self, deserted: Callable[[], None] = lambda: None) -> list[Run]:
        """Open the folder and return the runs of ended servers. `deserted` is called under the lock if no other server
        uses the folder. Blocking; raises OSError."""
        self.close()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.share(self.folder)
        self._remove_odd_files()
        self._last = open_regular(self.folder / LAST_ID, os.O_RDWR | os.O_CREAT)
        with self._hold_lock():
            living, began = self._living(), time.time()
            self._make_cwd_folder()
            if not living:
                deserted()
                if self.reader is None:  # another server may have opened it to a command's user
                    self.folder.chmod(0o700)
            self._lock = self._create_lock()
            runs = [run for run in self._runs() if run.server not in living]
        remove_cwd_files(self.folder / CWD_FOLDER, began, living)
        for run in runs:
            if run.status == "running":
                self._mark_lost(run)
        forgotten = self.choose_forgotten(runs)
        self.note_missed(runs, forgotten)
        for run_id in forgotten:
            self.forget(run_id)
        return [run for run in runs if run.id not in forgotten]

    def reopen(self) -> None:
        """Make again what was removed of the folder while it is open. What is left stays as it is. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.share(self.folder)
        self._remove_odd_files()
        if os.fstat(self._last).st_nlink == 0:
            before, self._last = self._last, open_regular(self.folder / LAST_ID, os.O_RDWR | os.O_CREAT)
            os.close(before)
        with self._hold_lock():
            if os.fstat(self._lock).st_nlink == 0:
                before, self._lock = self._lock, self._create_lock()
                os.close(before)
            self._make_cwd_folder()

    def claim(self, command: str, key: str | None, background: bool) -> Run:
        """Return a new run under the next id. It takes no room on the disk. Raises FileNotFoundError if the count was
        removed."""
        if os.fstat(self._last).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.folder))
        with self._hold_lock():
            number = self._last_id() + 1
            while os.path.lexists(f"{self.folder}/{number}"):  # the count is damaged
                number += 1
            self._highest = number
            with suppress(OSError):  # the disk is full
                os.pwrite(self._last, b"%020d" % number, 0)
        shown = command if len(command) <= SHOWN else f"{command[:SHOWN]}…"
        return Run(number, shown, self.name, time.time(), background, key=key)

    @property
    def has_room(self) -> bool:
        """Return whether the disk has room for a command's few files."""
        try:
            found = os.statvfs(self._last)
        except OSError:
            return False
        return found.f_bavail * found.f_frsize >= ROOM and (found.f_files == 0 or found.f_favail >= FILES)

    def create_output(self, run: Run) -> FileOutput:
        """Create the folder of a run, with its output file. Raises OSError."""
        folder = f"{self.folder}/{run.id}"
        with self._hold_lock():  # other servers read it only after the unlocking
            os.mkdir(folder, 0o700)
            try:
                self.share(folder)
                write_regular(f"{folder}/task.json", msgspec.json.encode(run))
                output = FileOutput(f"{folder}/output")
                self.share(f"{folder}/output")
            except OSError:
                self.forget(run.id)
                raise
        return output

    def share(self, path: Path | str) -> None:
        """Let the reader, and no other user, read the path. Raises OSError."""
        if self.reader is not None:
            os.chown(path, -1, self.reader)
            os.chmod(path, 0o710 if os.path.isdir(path) else 0o640)

    def share_file(self, name: str, text: str, *, runs: bool = False) -> Path:
        """Return a file for commands to read, or to run, written if it is not there. Raises OSError."""
        name = name if self.reader is None else f"{self.reader}-{name}"  # each sandbox reads its own
        path = self._shared.get(name)
        if path is not None and os.path.exists(path):
            return path
        fresh = (path := self.folder / name).with_suffix(".new")
        with self._hold_lock():
            write_regular(fresh, text.encode())
            self.share(fresh)
            if runs:
                fresh.chmod(0o700 if self.reader is None else 0o750)
            fresh.replace(path)
        self._shared[name] = path
        return path

    def save(self, run: Run) -> None:
        """Write `task.json` atomically. Raises OSError."""
        path = self.path(run.id, "task.json")
        fresh = path.with_suffix(".new")
        write_regular(fresh, msgspec.json.encode(run))
        fresh.replace(path)

    def cwd_path(self, run_id: int) -> Path:
        """Return the file in which a command of this server records its directory."""
        return self.folder / CWD_FOLDER / f"{self.name}-{run_id}"

    def path(self, run_id: int, name: str) -> Path:
        return self.folder / str(run_id) / name

    def read(self, run_id: int, offset: int, limit: int) -> bytes:
        """Return output of an ended run, or b"" if it was removed."""
        try:
            descriptor = open_regular(self.path(run_id, "output"), os.O_RDONLY)
        except OSError:
            return b""
        try:
            return os.pread(descriptor, limit, offset)
        finally:
            os.close(descriptor)

    def size(self, run_id: int) -> int:
        try:
            return self.path(run_id, "output").lstat().st_size
        except OSError:
            return 0

    def forget(self, run_id: int) -> None:
        """Remove a run's folder. May block for half a second while a command fills the disk."""
        folder = self.folder / str(run_id)
        try:
            with open_folder(folder):  # held open, so that its blocks are freed after the parent folder is unlocked
                for name in ("output", "task.json", "cwd"):
                    with suppress(OSError):
                        (folder / name).unlink()
                folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            _remove_folder(folder, ignore_errors=True)

    def choose_forgotten(self, runs: Iterable[Run]) -> set[int]:
        """Return the ids of ended runs to forget: the newest are kept, by number, age and size. Those whose end is not
        reported count apart."""
        kept = {True: 0, False: 0}  # by whether a report is due
        forgotten: set[int] = set()
        room = KEPT_BYTES
        oldest = time.time() - KEPT_FOR
        for run in sorted(runs, key=lambda run: run.ended or run.started, reverse=True):
            room -= run.size
            most = KEPT_UNREPORTED if run.is_report_due else KEPT
            if kept[run.is_report_due] < most and (run.ended or run.started) > oldest and room >= 0:
                kept[run.is_report_due] += 1
            else:
                forgotten.add(run.id)
        return forgotten

    def note_missed(self, runs: Iterable[Run], forgotten: Container[int]) -> None:
        """Note at the newest run whose end is to report that others are forgotten before theirs was. A failure is
        logged."""
        due = sorted((run for run in runs if run.is_report_due), key=lambda run: run.id)
        left = [run for run in due if run.id not in forgotten]
        if not left or len(left) == len(due) or left[-1].misses_ends:
            return
        log.warning("%d ended commands in %s are forgotten unreported", len(due) - len(left), self.folder)
        left[-1].misses_ends = True
        try:
            self.save(left[-1])
        except OSError as error:
            log.warning("run %d is not saved: %s", left[-1].id, error.strerror)

    def if_deserted(self, then: Callable[[], None]) -> bool:
        """Call `then` under the lock unless a server uses the folder. Return whether it did. Raises OSError."""
        descriptor = open_regular(self.folder / LAST_ID, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            is_deserted = not self._living()
            if is_deserted:
                then()
            return is_deserted
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Release the folder: another server may now manage its runs."""
        if self._lock != -1:
            with suppress(OSError):  # removed, or on a disk that became read-only: others find that no one holds it
                self._lock_of(self.name).unlink()
            os.close(self._lock)
        if self._last != -1:
            os.close(self._last)
        self._lock = self._last = -1

    @contextmanager
    def _hold_lock(self) -> Generator[None, None, None]:
        """Hold the servers' lock, for a few system calls."""
        fcntl.flock(self._last, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._last, fcntl.LOCK_UN)

    def _lock_of(self, server: str) -> Path:
        return self.folder / f"{server}.lock"

    def _create_lock(self) -> int:
        """Return the descriptor of this server's lock, which it holds."""
        descriptor = os.open(self._lock_of(self.name), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return descriptor

    def _living(self) -> set[str]:
        """Return the servers that hold their locks; remove the locks of others."""
        living: set[str] = set()
        for path in self.folder.glob("*.lock"):
            descriptor = open_regular(path, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            except BlockingIOError:
                living.add(path.stem)
            finally:
                os.close(descriptor)
        return living

    def _runs(self) -> Iterator[Run]:
        """Yield every run in the folder. An unreadable one was being written when its server died."""
        for number in self._numbers():
            path = self.path(number, "task.json")
            try:
                run = decode_json(read_regular(path, MAX_TASK), Run)
            except (OSError, JsonError) as error:
                if self.size(number) == 0:
                    if not _is_empty(path):  # else it was being written when its server died
                        log.warning("%s is damaged, and its run, without output, is forgotten: %s", path, error)
                    self.forget(number)
                    continue
                run = self._replace_record(number, path, error)
            run.id = number
            yield run

    def _replace_record(self, number: int, path: Path, error: Exception) -> Run:
        """Return a record of a run in place of a damaged one: its output can still be read."""
        reason = error.strerror if isinstance(error, OSError) else error
        log.warning("%s is damaged, and its run is listed as lost: %s", path, reason)
        began = path.parent.lstat().st_mtime
        run = Run(number, "(its record is damaged)", "", began, True)
        with suppress(OSError):
            remove_entry(path)
            self.save(run)
        return run

    def _numbers(self) -> list[int]:
        with os.scandir(self.folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        return [int(name) for name in names if name.isascii() and name.isdecimal()]

    def _remove_odd_files(self) -> None:
        """Remove entries that have a file's name but another type."""
        with os.scandir(self.folder) as entries:
            ours = [entry for entry in entries if entry.name == LAST_ID or entry.name.endswith(SHARED)]
        for entry in ours:
            if entry.is_dir(follow_symlinks=False):
                _remove_folder(entry.path)
            elif not entry.is_file(follow_symlinks=False):
                os.unlink(entry.path)
            elif not os.access(entry.path, os.R_OK | os.W_OK):
                allow_owner(entry.path)

    def require_cwd_folder(self) -> None:
        """Raise FileNotFoundError if the folder in which commands record their directory was removed."""
        path = f"{self.folder}/{CWD_FOLDER}"
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _make_cwd_folder(self) -> None:
        folder = self.folder / CWD_FOLDER
        if folder.is_symlink() or not folder.is_dir():
            folder.unlink(missing_ok=True)  # of a restored copy that was tampered with
            folder.mkdir(mode=0o700)

    def _last_id(self) -> int:
        try:
            last = int(os.pread(self._last, 20, 0))
        except ValueError:  # new or damaged: use the highest id on disk
            last = max(self._numbers(), default=0)
        return max(last, self._highest)

    def _mark_lost(self, run: Run) -> None:
        """Mark the run of a dead server. It was last seen at its last output; if there was none, at its start."""
        run.status, run.is_report_due = "lost", run.background
        run.ended = run.started
        with suppress(OSError):
            found = self.path(run.id, "output").lstat()
            run.size = found.st_size
            run.ended = max(run.started, found.st_mtime) if run.size else run.started


def remove_cwd_files(folder: Path, before: float, living: Container[str] = ()) -> None:
    """Remove the files in a CWD_FOLDER that last changed before a time, but those of the servers `living`. Blocking:
    there may be any number of files. Commands may write there meanwhile; ctime tells older files apart, as it can't be
    forged."""
    with suppress(OSError), open_folder(folder) as opened, os.scandir(opened) as entries:
        for entry in entries:
            found = entry.stat(follow_symlinks=False)
            is_kept = found.st_ctime >= before or entry.name.rpartition("-")[0] in living
            if not is_kept and not stat.S_ISDIR(found.st_mode):
                os.unlink(entry.name, dir_fd=opened)


def _is_empty(path: Path) -> bool:
    """Return whether there is no file, or an empty one."""
    try:
        found = path.lstat()
    except OSError:
        return True
    return stat.S_ISREG(found.st_mode) and found.st_size == 0


def _remove_folder(path: Path | str, *, ignore_errors: bool = False) -> None:
    import shutil  # start-up: 2 ms and 0.5 MB, and folders here are rare

    shutil.rmtree(path, ignore_errors=ignore_errors)
