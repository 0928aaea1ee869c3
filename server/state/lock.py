"""Lock a state folder: servers and a node share it, and a restore or a backup with workspaces has it exclusively.

The lock is on the folder itself, so there is no file with an owner, and the system releases it when a process ends.

A restore that was killed half-way leaves its journal. Nobody may use such a folder before it is whole again.
"""

import fcntl
import os
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

STAGE, REPLACED = ".restoring-", "replaced-"  # how the names of a restore's folders begin
JOURNAL = "moves.json"  # in the former, while files are moved
UNFINISHED = (
    "a restore of it was interrupted: run that again, with --replace, or run toolgate restore --undo, which puts back "
    "what was there"
)


class StateInUseError(OSError):
    """Another process holds the lock, or a restore is unfinished; the text says which."""


def find_unfinished(state: Path) -> Path | None:
    """Return the folder of a restore that was interrupted while it moved files, or None."""
    return next((journal.parent for journal in state.glob(f"{STAGE}*/{JOURNAL}")), None)


def acquire_shared(state: Path) -> int:
    """Share the existing folder until the returned descriptor is closed. Raises StateInUseError."""
    descriptor = _acquire(
        state, fcntl.LOCK_SH, "it is being restored, or backed up with its workspaces: try again later"
    )
    if find_unfinished(state) is not None:
        os.close(descriptor)
        raise StateInUseError(f"{state}: {UNFINISHED}")
    return descriptor


def hold_shared(state: Path) -> AbstractContextManager[None]:
    """Share the existing folder. Raises StateInUseError where a process has it exclusively."""
    return _hold(acquire_shared(state))


def hold_exclusive(state: Path) -> AbstractContextManager[None]:
    """Have the existing folder exclusively. Raises StateInUseError where a server uses it."""
    return _hold(_acquire(state, fcntl.LOCK_EX, "a server or node uses it: stop that first"))


@contextmanager
def _hold(descriptor: int) -> Generator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


def _acquire(state: Path, operation: int, reason: str) -> int:
    descriptor = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StateInUseError(f"{state}: {reason}") from None
    return descriptor
