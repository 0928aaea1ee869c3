"""Who uses a state folder: servers share it, and whoever replaces what is in it, or needs it to stand still, has it
alone. The lock is on the folder itself: there is no file that would belong to whoever came first, and the system lets
go when a process ends, however it ends."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


class StateInUseError(OSError):
    """It can't be now; the text says why."""


def acquire_shared(state: Path) -> int:
    """Use the folder, which is there, until the descriptor is closed. Raises InUse where somebody has it alone."""
    return _acquire(state, fcntl.LOCK_SH, "it is being restored, or backed up with its workspaces: try again later")


@contextmanager
def hold_shared(state: Path) -> Generator[None]:
    """Use the folder, which is there. Raises InUse where somebody has it alone."""
    with _until(acquire_shared(state)):
        yield


@contextmanager
def hold_exclusive(state: Path) -> Generator[None]:
    """Have the folder, which is there, for oneself. Raises InUse where a server uses it."""
    with _until(_acquire(state, fcntl.LOCK_EX, "a server uses it: stop that first")):
        yield


@contextmanager
def _until(held: int) -> Generator[None]:
    try:
        yield
    finally:
        os.close(held)


def _acquire(state: Path, how: int, otherwise: str) -> int:
    held = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise StateInUseError(f"{state}: {otherwise}") from None
    return held
