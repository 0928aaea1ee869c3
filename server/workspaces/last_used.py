"""Store when each principal last called, as the times of files, and messages for their return.

NAME            modified when NAME last called, to the minute
NAME.gone       created when NAME was first found to be gone, since its last call
NAME.word       a message for NAME
"""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

PRINCIPAL_NAME = re.compile(r"u-[0-9a-f]{40}")  # as `Principal.name`; the local user has another, and is never removed
EVERY = 60.0  # seconds between two notes for one principal
MAX_MESSAGE = 1_000  # bytes


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
            return (self._folder / name).stat().st_mtime
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
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        draft.rename(self._folder / f"{name}.word")

    def _take_message(self, name: str) -> str | None:
        path = self._folder / f"{name}.word"
        try:
            text = path.read_bytes()[:MAX_MESSAGE].decode(errors="replace")
        except FileNotFoundError:
            return None
        path.unlink(missing_ok=True)
        return text

    def _touch(self, path: Path, now: float) -> None:
        self._private()
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        os.utime(path, (now, now))

    def _remove(self, file: str) -> None:
        (self._folder / file).unlink(missing_ok=True)

    def _private(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
