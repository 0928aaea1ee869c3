"""The group that one server has in one hierarchy, with those of its principals in it. Knows no limits but its weight.

A lock on its folder says that its server lives: the kernel lets go of it however that ends, and no process id is
believed. A house that can be locked is a dead server's.
"""

import contextlib
import errno
import fcntl
import os
import re
import time
from pathlib import Path

from toolgate.tools.cgroups import kill
from toolgate.tools.cgroups.group import Seat
from toolgate.tools.cgroups.version import Allowance

NAME = re.compile(r"toolgate-[0-9]+-[0-9a-f]{16}")
WEIGHT = 25  # against 100 of the server: it gets four parts of five when both want the CPU
TRIES = 3  # a sweep may take the folder for a dead server's in the moment before it is locked


def new_name() -> str:
    return f"toolgate-{os.getpid()}-{os.urandom(8).hex()}"


class House:
    """Made, and locked, when it is made. Raises OSError. Forked processes share the lock until they are closed."""

    def __init__(self, seat: Seat, weight: int = WEIGHT) -> None:
        self.seat = seat
        self._lock: int | None = _made(seat.folder)
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._fit(weight)
            undo.pop_all()

    def _fit(self, weight: int) -> None:
        if (kind := self.seat.folder / "cgroup.type").exists() and kind.read_text().strip() != "domain":
            raise OSError(errno.EOPNOTSUPP, "the group it is in is threaded", str(self.seat.folder))
        if "cpu" in self.seat.controllers:
            self.seat.dialect.limits["cpu"](self.seat.folder, Allowance(weight=weight))
        self.seat.dialect.nest(self.seat.folder, self.seat.controllers)

    def room(self, name: str) -> tuple[Seat, bool]:
        """A group in it, and whether that is new. Raises OSError."""
        seat = Seat(self.seat.folder / name, self.seat.controllers, self.seat.dialect)
        try:
            seat.folder.mkdir()
        except FileExistsError:
            return seat, False
        return seat, True

    def sweep(self, until: float) -> dict[str, str]:
        """End the houses of dead servers beside this one: their names, and what kept them ("" when nothing did)."""
        beside = [each for each in self.seat.folder.parent.iterdir() if NAME.fullmatch(each.name)]
        swept = {each.name: self._sweep(each, until) for each in beside if each != self.seat.folder}
        return {name: kept for name, kept in swept.items() if kept is not None}

    def _sweep(self, folder: Path, until: float) -> str | None:
        """None when its server lives, or it is gone."""
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(os.close, _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB))
                gone = kill.clear(folder, self.seat.dialect.halt, until)
                return "" if gone else "a process in it can't be ended"
        except (BlockingIOError, FileNotFoundError):
            return None
        except OSError as error:
            return error.strerror or str(error)

    def close(self, within: float = 5.0) -> bool:
        """Kill all in it, and remove it. Waits `within` seconds; is it gone? Raises OSError."""
        try:
            return kill.clear(self.seat.folder, self.seat.dialect.halt, time.monotonic() + within)
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None


def _made(folder: Path) -> int | None:
    for _ in range(TRIES):
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            lock = _locked(folder, fcntl.LOCK_EX)
            if _still(lock, folder):
                return lock
            os.close(lock)
    raise FileNotFoundError(errno.ENOENT, "removed as fast as it is made", str(folder))


def _locked(folder: Path, how: int) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _still(descriptor: int, folder: Path) -> bool:
    """Is what is open what is there now?"""
    try:
        return os.fstat(descriptor).st_ino == folder.stat().st_ino
    except FileNotFoundError:
        return False
