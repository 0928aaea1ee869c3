"""Tell which of the server processes that share a state are alive.

`ProcessRegistry` serves those on one machine: each holds a lock on a file of its own, which the system releases when
the process ends. Unlike a process id, its name is never reused. Features serve those that
share a database or a bus.
"""

import fcntl
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from toolgate.server.base.errors import StateError
from toolgate.tools.api.regular_file import open_regular, remove_entry

log = logging.getLogger(__name__)


class LiveProcesses(Protocol):
    """The processes that share a state. A claim of a dead one's work is conditional on its name in the row."""

    def own_name(self) -> str:
        """Return this process's opaque name. Raises StateError."""
        ...

    async def find_dead(self, names: Iterable[str]) -> frozenset[str]:
        """Return those that have ended: they change nothing any more. Call it before a transaction, not in one."""
        ...

    def close(self) -> None:
        """Count as dead for the other processes from now on."""
        ...


class ReplicaLocks(Protocol):
    """The locks that living replicas hold, each under its name."""

    async def hold(self) -> None:
        """Hold this replica's until cancelled."""
        ...

    async def find_released(self, names: Iterable[str]) -> frozenset[str]:
        """Return those that held theirs once, and do not now."""
        ...


class ProcessRegistry:
    """One file for each process in `folder`. `own_name` is called in transactions only: not safe for two at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._own: tuple[str, int] | None = None  # name, file descriptor

    def own_name(self) -> str:
        if self._own is None:
            try:
                self._own = self._mark()
                for path in self.folder.glob("[!.]*"):
                    self._is_alive(path.name)  # removes the files of dead processes
            except OSError as error:
                log.error("no file can be created in %s: %s", self.folder, error)
                raise StateError("this process can't be marked as alive; the server's log says why") from error
        return self._own[0]

    def _is_alive(self, name: str) -> bool:
        """Return whether the process of that name runs; the file of a dead one is removed."""
        if self._own is not None and name == self._own[0]:
            return True
        path = self.folder / name
        try:
            file = open_regular(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError as error:  # a living process has locked a file of its own
            log.warning("%s is not the file of a process, and is removed: %s", path, error.strerror)
            remove_entry(path)
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that check at once both get the right answer
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        path.unlink(missing_ok=True)
        return False

    async def find_dead(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset(name for name in names if not self._is_alive(name))

    def close(self) -> None:
        if self._own is not None:
            name, file = self._own
            (self.folder / name).unlink(missing_ok=True)
            os.close(file)
            self._own = None

    def _mark(self) -> tuple[str, int]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = os.urandom(8).hex()
        draft = self.folder / f".{name}"
        file = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)  # no other process knows the file, so this does not wait
        draft.rename(self.folder / name)  # visible from here on, and locked
        return name, file
