"""Which of the server processes that share a state directory still live. Knows nothing of what they do.

Each that needs to be known holds a lock on a file of its own, which the system lets go when it dies, however
it dies: unlike a process id, it is never given to another.
"""

import fcntl
import logging
import os
from pathlib import Path

from toolgate.server.state.store import StateError, make_private_folder

log = logging.getLogger(__name__)


class ProcessRegistry:
    """One file a process in `folder`. Not for two threads at once: the store's thread is the one that asks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._own: tuple[str, int] | None = None  # name, file descriptor

    def own_name(self) -> str:
        """This process's name, opaque. The first time it makes its file. Raises StateError."""
        if self._own is None:
            try:
                self._own = self._mark()
                for path in self.folder.glob("[!.]*"):
                    self.is_alive(path.name)  # clears away what the dead have left
            except OSError as error:
                log.error("no file can be made in %s: %s", self.folder, error)
                raise StateError("this process can't be marked as alive; the server's log says why") from error
        return self._own[0]

    def is_alive(self, name: str) -> bool:
        """Whether the process of that name still runs; the file of one that doesn't is removed."""
        if self._own is not None and name == self._own[0]:
            return True
        path = self.folder / name
        try:
            file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that look at once both see the truth
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        path.unlink(missing_ok=True)
        return False

    def close(self) -> None:
        """This process no longer fires anything: to the others it is dead."""
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
        fcntl.flock(file, fcntl.LOCK_EX)  # nobody else knows the file, so this doesn't wait
        draft.rename(self.folder / name)  # from here on it is seen, and seen locked
        return name, file
