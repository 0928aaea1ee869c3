"""Tell which of the server processes that share a state folder are alive.

Each holds a lock on a file of its own, which the system releases when the process ends. Unlike a process id, its
name is never reused.
"""

import fcntl
import logging
import os
from pathlib import Path

from toolgate.server.state.store import StateError, make_private_folder

log = logging.getLogger(__name__)


class ProcessRegistry:
    """One file for each process in `folder`. Used by the store's thread only: not safe for two at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._own: tuple[str, int] | None = None  # name, file descriptor

    def own_name(self) -> str:
        """Return this process's opaque name, and create its file the first time. Raises StateError."""
        if self._own is None:
            try:
                self._own = self._mark()
                for path in self.folder.glob("[!.]*"):
                    self.is_alive(path.name)  # removes the files of dead processes
            except OSError as error:
                log.error("no file can be created in %s: %s", self.folder, error)
                raise StateError("this process can't be marked as alive; the server's log says why") from error
        return self._own[0]

    def is_alive(self, name: str) -> bool:
        """Return whether the process of that name runs; the file of a dead one is removed."""
        if self._own is not None and name == self._own[0]:
            return True
        path = self.folder / name
        try:
            file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that check at once both get the right answer
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        path.unlink(missing_ok=True)
        return False

    def close(self) -> None:
        """Count as dead for the other processes from now on."""
        if self._own is not None:
            name, file = self._own
            (self.folder / name).unlink(missing_ok=True)
            os.close(file)
            self._own = None

    def _mark(self) -> tuple[str, int]:
        make_private_folder(self.folder)
        name = os.urandom(8).hex()
        draft = self.folder / f".{name}"
        file = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)  # no other process knows the file, so this does not wait
        draft.rename(self.folder / name)  # visible from here on, and locked
        return name, file
