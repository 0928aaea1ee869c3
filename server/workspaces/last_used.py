"""Store when each principal last called, as the times of files, and messages for their return.

NAME            modified when NAME last called, to the minute
NAME.gone       created when NAME was first found to be gone, since its last call
NAME.word       a message for NAME
"""

import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from toolgate.tools.api.regular_file import read_regular, remove_entry

PRINCIPAL_NAME = re.compile(r"u-[0-9a-f]{40}")  # as `Principal.name`; the local user has another, and is never removed
EVERY = 60.0  # seconds between two notes for one principal
MAX_MESSAGE, MAX_FILE = 1_000, 2**20  # bytes of a message that is shown, and of its file

log = logging.getLogger(__name__)


class LastUsed:
    """The files in `folder`, which is created when it is first needed. Each method raises OSError."""

    def __init__(self, folder: Path, now: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._now = now
        self._noted: dict[str, float] = {}

    def note_call(self, name: str) -> str | None:
        """Note a call of `name` now. Return a message for it, once."""
        now = self._now()
        if now - self._noted.get(name, 0.0) < EVERY or not PRINCIPAL_NAME.fullmatch(name):
            return None
        self._noted[name] = now
        self._touch(self._folder / name, now)
        self._remove(f"{name}.gone")
        return self._take_message(name)

    def find_last_call(self, name: str) -> float | None:
        """Return the time of the last call, or None; notes nothing."""
        try:
            return (self._folder / name).lstat().st_mtime
        except FileNotFoundError:
            return None

    def last_call(self, name: str) -> float:
        """Return the time of the last call, in seconds since the epoch; if unknown, note now."""
        time_of_call = self.find_last_call(name)
        if time_of_call is None:
            time_of_call = self._now()
            self._touch(self._folder / name, time_of_call)
        return time_of_call

    def gone_since(self, name: str) -> float:
        """Return since when the principal is gone: now, if that is new."""
        return self.last_call(f"{name}.gone")

    def mark_present(self, name: str) -> None:
        """Note that the principal is not gone."""
        self._remove(f"{name}.gone")

    def leave_message(self, name: str, text: str) -> None:
        """Leave a message for when `name` comes back, and remove all else about it."""
        self._private()
        for ending in ("", ".gone"):
            self._remove(name + ending)
        self._noted.pop(name, None)
        draft = self._folder / f"{name}.draft"
        remove_entry(draft)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        draft.rename(self._folder / f"{name}.word")

    def _take_message(self, name: str) -> str | None:
        path = self._folder / f"{name}.word"
        try:
            text = read_regular(path, MAX_FILE)[:MAX_MESSAGE].decode(errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("%s has no message, and is removed: %s", path, error.strerror)
            text = None
        remove_entry(path)
        return text

    def _touch(self, path: Path, now: float) -> None:
        """Set the time of a file, which is created if it is missing. It is not opened: it may be anything."""
        if not os.path.lexists(path):
            self._private()
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.utime(path, (now, now), follow_symlinks=False)

    def _remove(self, file: str) -> None:
        remove_entry(self._folder / file)

    def _private(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
