"""Lock a state folder: servers and a node share it, and a restore or a backup with workspaces has it exclusively.

The lock is on the folder itself, so there is no file with an owner, and the system releases it when a process ends.
"""

import fcntl
import os
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path


class StateInUseError(OSError):
    """Another process holds the lock; the text says which."""


def acquire_shared(state: Path) -> int:
    """Share the existing folder until the returned descriptor is closed. Raises StateInUseError."""
    return _acquire(state, fcntl.LOCK_SH, "it is being restored, or backed up with its workspaces: try again later")


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
