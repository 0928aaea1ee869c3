"""Replace what a backup contains in a state folder, and leave the rest of the folder as it is.

    .restoring-…/       the backup while it is extracted, and the journal of the moves
    replaced-TIME/      what the backup replaced, under the names it had in the state folder

A database is replaced with its flags, keys and audit log: these of two states don't fit together. People's folders,
archives and times of calls are replaced one by one.

All moves are renames inside the state folder, so it may be a volume of its own. If the process is killed between two
renames, the next restore undoes them, and so does `restore --undo`. Meanwhile no server uses the folder.
"""

import os
import signal
import stat
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from toolgate.server.state import lock
from toolgate.server.state.backup.manifest import ARCHIVE_FOLDER, DATABASE, FOLDERS, BackupError
from toolgate.server.state.backup.moves import Move, make_moves, remove_journal, undo_moves, write_journal
from toolgate.server.state.lock import REPLACED, STAGE
from toolgate.server.state.sqlite.database import checkpoint
from toolgate.tools.workspace.files import rmtree

OF_DATABASE = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", "flags", "keys", "audit")  # a database, and its own
OF_PEOPLE = (*FOLDERS, ARCHIVE_FOLDER, "moves")  # folders of people's files
REMADE = ("node.lock", "node.sock")  # at each start of a node
END_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def staging_folder(state: Path, *, replace: bool) -> Generator[Path]:
    """Yield a folder to extract a backup into, with `state` created and locked. The folder is removed at the end,
    after moves that were not finished are undone.

    Raises StateInUseError; BackupError where `state` is not empty and `replace` is false; OSError.
    """
    is_new = not state.exists()
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with lock.hold_exclusive(state):
            _clear_stages(state)
            if not replace and (contents := _list_contents(state)):
                raise BackupError(f"{state} is not empty, it has {contents[0]}: --replace replaces what the backup has")
            folder = Path(tempfile.mkdtemp(prefix=STAGE, dir=state))
            try:
                yield folder
            except BaseException:
                with suppress(BackupError):  # the first error is the one to tell; the next start says how to go on
                    _end_stage(state, folder)
                raise
            _end_stage(state, folder)
    except BaseException:
        if is_new:
            with suppress(OSError):  # as before: not there
                state.rmdir()
        raise


def undo_unfinished(state: Path) -> bool:
    """Undo a restore that was interrupted; return whether there was one.

    Raises StateInUseError, BackupError and OSError.
    """
    with lock.hold_exclusive(state):
        unfinished = lock.find_unfinished(state) is not None
        _clear_stages(state)
    return unfinished


def _clear_stages(state: Path) -> None:
    """Undo and remove what restores that were killed have left."""
    for stage in sorted(state.glob(f"{STAGE}*")):
        _end_stage(state, stage)


def _end_stage(state: Path, stage: Path) -> None:
    """Remove the folder of a restore. Moves that its journal still has are undone before."""
    if (stage / lock.JOURNAL).exists():
        try:
            undo_moves(state, stage)
        except OSError as error:
            raise BackupError(f"an interrupted restore can't be undone: {error}") from error
    rmtree.remove_tree(stage)


@contextmanager
def defer_signals() -> Generator[None]:
    """Deliver SIGINT and SIGTERM at the end. A signal mask would hold for one thread only."""
    received: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _: received.append(number)) for number in END_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for first in received[:1]:
            signal.raise_signal(first)


def replace_state(staging: Path, state: Path) -> Path | None:
    """Move the contents of `staging` to the state folder. Return the folder with what they replaced, if anything.

    A move that fails is undone as a whole. Raises BackupError and OSError.
    """
    aside = begin_replacement(staging, state, with_database=(staging / DATABASE).exists())
    finish_replacement(staging)
    return aside


def begin_replacement(staging: Path, state: Path, *, with_database: bool) -> Path | None:
    """Do as `replace_state`, but keep the journal: the moves are undone unless `finish_replacement` follows."""
    checkpoint(state / DATABASE)  # a death between two renames would leave its log to another database
    stage = staging.parent
    units = sorted(_list_units(staging, OF_DATABASE if with_database else ("audit",)))
    before = [name for name in units if _is_in_the_way(state / name, staging / name)]
    others = [name for name in OF_DATABASE if with_database and name not in units]
    before += [name for name in others if os.path.lexists(state / name) and not _is_empty_folder(state / name)]
    before.sort(key=lambda name: name != DATABASE)  # first, before its keys
    aside = make_aside_folder(state) if before else None
    moves = [Move(name, f"{aside.name}/{name}") for name in before] if aside is not None else []
    moves += [
        Move(f"{stage.name}/{staging.name}/{name}", name) for name in sorted(units, key=lambda name: name == DATABASE)
    ]  # it comes last
    try:
        write_journal(stage, moves)
        os.sync()  # the new files and the journal: a name could reach the disk before its data
        make_moves(state, moves)
        sync_folder(state)
    except BaseException as error:
        _take_back(state, stage, aside, error)
        raise
    return aside


def finish_replacement(staging: Path) -> None:
    """Keep the moves that `begin_replacement` made."""
    remove_journal(staging.parent)


def _list_units(folder: Path, whole: tuple[str, ...]) -> Iterator[str]:
    """Return what is replaced at once: the names in `folder` that are files or `whole`, else the names below."""
    for name in os.listdir(folder):
        if name in whole or not _is_folder(folder / name):
            yield name
        else:
            yield from (f"{name}/{below}" for below in os.listdir(folder / name))


def _is_in_the_way(path: Path, come: Path) -> bool:
    """Return whether `path` is there, but for an empty folder in the place of a folder: a rename replaces that."""
    if not os.path.lexists(path):
        return False
    return not (_is_empty_folder(path) and _is_folder(come))


def _is_empty_folder(path: Path) -> bool:
    return _is_folder(path) and not os.listdir(path)


def _is_folder(path: Path) -> bool:
    return stat.S_ISDIR(path.lstat().st_mode)


def _take_back(state: Path, stage: Path, aside: Path | None, error: BaseException) -> None:
    """Undo the moves. Raises BackupError where that fails, or where `error` is an OSError."""
    try:
        undo_moves(state, stage)
        if aside is not None:
            with suppress(FileNotFoundError):
                aside.rmdir()
    except OSError as another:
        there = f"; the previous contents are in {aside}" if aside is not None else ""
        raise BackupError(
            f"the state was replaced in part, and that could not be undone: {another}{there}; "
            "try toolgate restore --undo"
        ) from error
    if isinstance(error, OSError):
        raise BackupError(f"the state can't be replaced, and nothing was changed: {error}") from error


def _list_contents(state: Path) -> list[str]:
    """Return the names in `state` but for empty folders, earlier contents, hidden files and REMADE."""
    names = sorted(name for name in os.listdir(state) if not name.startswith((".", REPLACED)) and name not in REMADE)
    return [name for name in names if not (state / name).is_dir() or os.listdir(state / name)]


def list_people(folder: Path) -> list[str]:
    """Return what a folder of replaced contents has of people, such as `workspaces/NAME`."""
    found: list[str] = []
    for name in OF_PEOPLE:
        with suppress(FileNotFoundError, NotADirectoryError):
            found += [f"{name}/{below}" for below in sorted(os.listdir(folder / name)) if not below.startswith(".")]
    return found


def make_aside_folder(state: Path) -> Path:
    """Return a new folder in `state` for what it had."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return Path(tempfile.mkdtemp(prefix=f"{REPLACED}{stamp}-", dir=state))


def sync_folder(folder: Path) -> None:
    """Have the names in `folder`, which may be a link to one, on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
