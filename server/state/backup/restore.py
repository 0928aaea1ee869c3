"""What was read from a backup put in place of what a state folder holds. Knows no archive.

    .restoring-…/       what is on its way in, until it is whole
    replaced-TIME/      what was there before

All moves are renames inside the state folder, so it may be a volume of its own; who is killed between two of them
leaves everything there, on one side or the other.
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
END_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def staging_folder(state: Path, *, replace: bool) -> Generator[Path]:
    """Where to put what is to come, while nobody uses `state`, which is made. Nothing is left of it at the end. Raises
    InUse; Refused where there is something already, and it may not be replaced; OSError."""
    is_new = not state.exists()
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with lock.hold_exclusive(state):
            for left in state.glob(f"{STAGE}*"):  # of one that was killed
                rmtree.remove_tree(left)
            if not replace and (found := _list_contents(state)):
                raise BackupError(f"{state} is not empty, it has {found[0]}: --replace moves what is there aside")
            room = Path(tempfile.mkdtemp(prefix=STAGE, dir=state))
            try:
                yield room
            finally:
                rmtree.remove_tree(room)
    except BaseException:
        if is_new:
            with suppress(OSError):  # it is as it was: not there
                state.rmdir()
        raise


@contextmanager
def defer_signals() -> Generator[None]:
    """Ctrl-C, and who ends us, come when it is over. Not by a mask: that is one thread's, and there may be others."""
    came: list[int] = []
    before = {each: signal.signal(each, lambda number, _: came.append(number)) for each in END_SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in came[:1]:
            signal.raise_signal(number)


def replace_state(staging: Path, state: Path) -> Path | None:
    """Move what is in `come` to the state folder, and what is there aside: gives where to, if there was anything. What
    can't be done whole is taken back. Raises Refused and OSError."""
    checkpoint(state / DATABASE)  # who dies between two renames would leave its log to another database
    os.sync()  # what has come: a name could be on the disk before what is in it, and so many files take longer each
    moves = _Moves()
    aside = _make_aside_folder(state)
    try:
        if aside is not None:
            for name in sorted(
                _list_contents(state), key=lambda name: name != DATABASE
            ):  # which goes first, before its keys
                moves.move(state / name, aside / name)
        for name in sorted(os.listdir(staging), key=lambda name: name == DATABASE):  # last: then its keys are there
            with suppress(FileNotFoundError, NotADirectoryError):
                (state / name).rmdir()  # an empty one
            moves.move(staging / name, state / name)
        sync_folder(state)
    except BaseException as error:
        _take_back(moves, aside, error)
        raise
    return aside


class _Moves:
    """Renames, which can be taken back."""

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
    """Raises Refused, but for what is none of the disk's errors and left nothing changed."""
    try:
        moves.undo()
        if aside is not None:
            aside.rmdir()
    except OSError as another:
        there = f"; what was there is in {aside}" if aside is not None else ""
        raise BackupError(f"not all of it could be put in place, nor taken back: {another}{there}") from error
    if isinstance(error, OSError):
        raise BackupError(f"it can't be put in place, and nothing was changed: {error}") from error


def _list_contents(state: Path) -> list[str]:
    """What is in it, but for empty folders, what was replaced before, and what is made anew."""
    names = sorted(name for name in os.listdir(state) if not name.startswith((".", REPLACED)))
    return [name for name in names if not (state / name).is_dir() or os.listdir(state / name)]


def _make_aside_folder(state: Path) -> Path | None:
    if not _list_contents(state):
        return None
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return Path(tempfile.mkdtemp(prefix=f"{REPLACED}{stamp}-", dir=state))


def sync_folder(folder: Path) -> None:
    """See that the names in a folder, which may be a link to one, are on the disk."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(held)
    finally:
        os.close(held)
