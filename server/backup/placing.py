"""What was read from a backup put in place of what a state folder holds. Knows no archive.

    .restoring-…/       what is on its way in, until it is whole
    replaced-TIME/      what was there before

All moves are renames inside the state folder, so it may be a volume of its own; who dies between two of them leaves
everything there, on one side or the other.
"""

import os
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from toolgate.server.backup.contents import DATABASE, Refused
from toolgate.server.cleaning import trees
from toolgate.server.state import use
from toolgate.server.state.sqlite import fold

STAGE, REPLACED = ".restoring-", "replaced-"


@contextmanager
def cleared(state: Path, *, replace: bool) -> Generator[Path]:
    """Where to put what is to come, while nobody uses `state`, which is made. Nothing is left of it at the end. Raises
    InUse; Refused where there is something already, and it may not be replaced; OSError."""
    is_new = not state.exists()
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with use.alone(state):
            for left in state.glob(f"{STAGE}*"):  # of one that was killed
                trees.remove(left)
            if not replace and (found := _held(state)):
                raise Refused(f"{state} is not empty, it has {found[0]}: --replace moves what is there aside")
            room = Path(tempfile.mkdtemp(prefix=STAGE, dir=state))
            try:
                yield room
            finally:
                trees.remove(room)
    except BaseException:
        if is_new:
            with suppress(OSError):  # it is as it was: not there
                state.rmdir()
        raise


def place(come: Path, state: Path) -> Path | None:
    """Move what is in `come` to the state folder, and what is there aside: gives where to, if there was anything.
    Raises Refused and OSError."""
    fold(state / DATABASE)  # who dies between two renames would leave its log to another database
    aside = _set_aside(state)
    try:
        for name in sorted(os.listdir(come), key=lambda name: name == DATABASE):  # last: then its keys are there
            with suppress(FileNotFoundError, NotADirectoryError):
                (state / name).rmdir()  # an empty one
            (come / name).rename(state / name)
        _sync(state)
    except OSError as error:
        there = f"; what was there is in {aside}" if aside is not None else ""
        raise Refused(f"not all of it could be put in place: {error}{there}") from error
    return aside


def _held(state: Path) -> list[str]:
    """What is in it, but for empty folders, what was replaced before, and what is made anew."""
    names = sorted(name for name in os.listdir(state) if not name.startswith((".", REPLACED)))
    return [name for name in names if not (state / name).is_dir() or os.listdir(state / name)]


def _set_aside(state: Path) -> Path | None:
    names = _held(state)
    if not names:
        return None
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside = Path(tempfile.mkdtemp(prefix=f"{REPLACED}{stamp}-", dir=state))
    for name in sorted(names, key=lambda name: name != DATABASE):  # which goes first, before its keys
        (state / name).rename(aside / name)
    return aside


def _sync(folder: Path) -> None:
    held = os.open(folder, trees.FOLDER)
    try:
        os.fsync(held)
    finally:
        os.close(held)
