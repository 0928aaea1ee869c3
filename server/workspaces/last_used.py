"""When each principal last called, by files whose times say so; and what is to be told to who comes back. Knows nothing
of workspaces.

    NAME            changed when NAME last called, to the minute
    NAME.gone       made when NAME was first seen to be gone, since it last called
    NAME.word       what to tell NAME
"""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

PRINCIPAL_NAME = re.compile(
    r"u-[0-9a-f]{40}"
)  # as `Principal.name`; the local user, who has no such name, is not ours to judge
EVERY = 60.0  # seconds between two notes of one principal's calls
MAX_MESSAGE = 1_000  # bytes


class LastUsed:
    """`folder` is made when it is first needed. Each method does a file's work or two. Raises OSError."""

    def __init__(self, folder: Path, now: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._now = now
        self._noted: dict[str, float] = {}

    def note_call(self, name: str) -> str | None:
        """A call of `name`, now. Gives what is to be told, once."""
        now = self._now()
        if now - self._noted.get(name, 0.0) < EVERY or not PRINCIPAL_NAME.fullmatch(name):
            return None
        self._noted[name] = now
        self._touch(self._folder / name, now)
        self._remove(f"{name}.gone")
        return self._take_message(name)

    def find_last_call(self, name: str) -> float | None:
        """When it last called, where that is known: nothing is noted by looking."""
        try:
            return (self._folder / name).stat().st_mtime
        except FileNotFoundError:
            return None

    def last_call(self, name: str) -> float:
        """When it last called, in seconds since the epoch: now, where nobody knows."""
        return self._since(name)

    def gone_since(self, name: str) -> float:
        """Since when it is gone: now, if that is new."""
        return self._since(f"{name}.gone")

    def mark_present(self, name: str) -> None:
        """It is not gone, or not any more."""
        self._remove(f"{name}.gone")

    def leave_message(self, name: str, text: str) -> None:
        """Have `name` told, when it comes back; nothing else is remembered of it."""
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

    def _since(self, file: str) -> float:
        known = self.find_last_call(file)
        if known is None:
            known = self._now()
            self._touch(self._folder / file, known)
        return known

    def _touch(self, path: Path, now: float) -> None:
        self._private()
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        os.utime(path, (now, now))

    def _remove(self, file: str) -> None:
        (self._folder / file).unlink(missing_ok=True)

    def _private(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
