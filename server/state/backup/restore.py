"""Replace what a state folder contains by an extracted backup.

    .restoring-…/       the backup while it is extracted
    replaced-TIME/      the previous contents

All moves are renames inside the state folder, so it may be a volume of its own. A process that is killed between two
renames loses nothing: each file is in one of the two places.
"""

import os
import signal
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from toolgate.server.state import lock
from toolgate.server.state.backup.manifest import DATABASE, BackupError
from toolgate.server.state.sqlite import checkpoint
from toolgate.server.workspaces import rmtree

STAGE, REPLACED = ".restoring-", "replaced-"
REMADE = ("node.lock", "node.sock")  # at each start of a node
END_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def staging_folder(state: Path, *, replace: bool) -> Generator[Path]:
    """Yield a folder to extract a backup into, with `state` created and locked. The folder is removed at the end.

    Raises StateInUseError; BackupError where `state` is not empty and `replace` is false; OSError.
    """
    is_new = not state.exists()
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with lock.hold_exclusive(state):
            for stage in state.glob(f"{STAGE}*"):  # of a restore that was killed
                rmtree.remove_tree(stage)
            if not replace and (contents := _list_contents(state)):
                raise BackupError(f"{state} is not empty, it has {contents[0]}: --replace moves its contents aside")
            folder = Path(tempfile.mkdtemp(prefix=STAGE, dir=state))
            try:
                yield folder
            finally:
                rmtree.remove_tree(folder)
    except BaseException:
        if is_new:
            with suppress(OSError):  # as before: not there
                state.rmdir()
        raise


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
    """Move the contents of `staging` to the state folder. Return the folder with the previous contents,
    if there were any.

    A move that fails is undone as a whole. Raises BackupError and OSError.
    """
    checkpoint(state / DATABASE)  # a death between two renames would leave its log to another database
    os.sync()  # the new files: a name could reach the disk before its data, and an fsync for each takes longer
    moves = _Moves()
    aside = make_aside_folder(state) if _list_contents(state) else None
    try:
        if aside is not None:
            for name in sorted(_list_contents(state), key=lambda name: name != DATABASE):  # first, before its keys
                moves.move(state / name, aside / name)
        for name in sorted(os.listdir(staging), key=lambda name: name == DATABASE):  # it comes last, after its keys
            with suppress(FileNotFoundError, NotADirectoryError):
                (state / name).rmdir()  # an empty one
            moves.move(staging / name, state / name)
        sync_folder(state)
    except BaseException as error:
        _take_back(moves, aside, error)
        raise
    return aside


class _Moves:
    """Renames that can be undone."""

    def __init__(self) -> None:
        self.done: list[tuple[Path, Path]] = []

    def move(self, path: Path, to: Path) -> None:
        path.rename(to)
        self.done.append((path, to))

    def undo(self) -> None:
        while self.done:
            path, to = self.done[-1]
            to.rename(path)
            self.done.pop()


def _take_back(moves: _Moves, aside: Path | None, error: BaseException) -> None:
    """Undo the moves. Raises BackupError where that fails, or where `error` is an OSError."""
    try:
        moves.undo()
        if aside is not None:
            aside.rmdir()
    except OSError as another:
        there = f"; the previous contents are in {aside}" if aside is not None else ""
        raise BackupError(f"the state was replaced in part, and that could not be undone: {another}{there}") from error
    if isinstance(error, OSError):
        raise BackupError(f"the state can't be replaced, and nothing was changed: {error}") from error


def _list_contents(state: Path) -> list[str]:
    """Return the names in `state` but for empty folders, earlier contents, hidden files and REMADE."""
    names = sorted(name for name in os.listdir(state) if not name.startswith((".", REPLACED)) and name not in REMADE)
    return [name for name in names if not (state / name).is_dir() or os.listdir(state / name)]


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
