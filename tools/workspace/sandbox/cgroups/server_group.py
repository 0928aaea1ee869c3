"""Keep one server's group in one hierarchy, with its principals' groups inside.

A lock on its folder marks a living server. The kernel releases it however the server ends, so no pid is trusted: a
group that can be locked belongs to a dead server.
"""

import contextlib
import errno
import fcntl
import os
import re
import time
from pathlib import Path

from toolgate.tools.workspace.sandbox.cgroups import kill
from toolgate.tools.workspace.sandbox.cgroups.group import GroupFolder
from toolgate.tools.workspace.sandbox.cgroups.versions import Allowance

NAME = re.compile(r"toolgate-[0-9]+-[0-9a-f]{16}")
WEIGHT = 25  # against 100 of the server, which gets four fifths of a contended CPU
TRIES = 3  # a sweep may remove the folder in the moment before it is locked


def new_name() -> str:
    return f"toolgate-{os.getpid()}-{os.urandom(8).hex()}"


class ServerGroup:
    """A server's group, made and locked on creation. Raises OSError. Forked processes share the lock."""

    def __init__(self, folder: GroupFolder, weight: int = WEIGHT) -> None:
        self.folder = folder
        self._lock: int | None = _make_locked(folder.path)
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._prepare(weight)
            undo.pop_all()

    def _prepare(self, weight: int) -> None:
        if (kind := self.folder.path / "cgroup.type").exists() and kind.read_text().strip() != "domain":
            raise OSError(errno.EOPNOTSUPP, "its parent group is threaded", str(self.folder.path))
        if "cpu" in self.folder.controllers:
            self.folder.version.limits["cpu"](self.folder.path, Allowance(weight=weight))
        self.folder.version.nest(self.folder.path, self.folder.controllers)

    def make_folder(self, name: str) -> tuple[GroupFolder, bool]:
        """Return a group in it, and whether that is new. Raises OSError."""
        folder = GroupFolder(self.folder.path / name, self.folder.controllers, self.folder.version)
        try:
            folder.path.mkdir()
        except FileExistsError:
            return folder, False
        return folder, True

    def sweep(self, until: float) -> dict[str, str]:
        """End the groups of dead servers beside this one. Return their names and errors ("" for none)."""
        beside = [each for each in self.folder.path.parent.iterdir() if NAME.fullmatch(each.name)]
        swept = {each.name: self._sweep(each, until) for each in beside if each != self.folder.path}
        return {name: error for name, error in swept.items() if error is not None}

    def _sweep(self, folder: Path, until: float) -> str | None:
        """Return the error ("" for none), or None if its server lives or it is gone."""
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(os.close, _lock_folder(folder, fcntl.LOCK_EX | fcntl.LOCK_NB))
                gone = kill.clear(folder, self.folder.version.halt, until)
                return "" if gone else "a process in it can't be ended"
        except (BlockingIOError, FileNotFoundError):
            return None
        except OSError as error:
            return error.strerror or str(error)

    def close(self, within: float = 5.0) -> bool:
        """Kill all its processes and remove it. Return whether it is gone after `within` seconds. Raises OSError."""
        try:
            return kill.clear(self.folder.path, self.folder.version.halt, time.monotonic() + within)
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None


def _make_locked(folder: Path) -> int | None:
    for _ in range(TRIES):
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            lock = _lock_folder(folder, fcntl.LOCK_EX)
            if _is_same_folder(lock, folder):
                return lock
            os.close(lock)
    raise FileNotFoundError(errno.ENOENT, "another process keeps removing it", str(folder))


def _lock_folder(folder: Path, how: int) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_same_folder(descriptor: int, folder: Path) -> bool:
    """Return whether the open folder is still the one at the path."""
    try:
        return os.fstat(descriptor).st_ino == folder.stat().st_ino
    except FileNotFoundError:
        return False
