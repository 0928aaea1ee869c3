"""Finds out when files change that somebody is subscribed to: one watch for all of them. Knows nothing of who is told.

What wakes it is a change in the folder a file is in; what counts is whether the file itself is another: its stamp.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

MAX_WATCHED = 2_000  # files and folders: the system has some ten thousand watches for all that runs on it
DEBOUNCE = 300  # ms that changes are gathered for while they keep coming

RECENT = 100_000_000  # ns before a watch begins in which a change is told, too: the way here takes a few threads

Stamp = tuple[int, int, int, int] | None  # None: there is nothing

log = logging.getLogger(__name__)


class Watched:
    """A path that somebody waits for a change of."""

    def __init__(self, stamp: Stamp) -> None:
        self.stamp = stamp
        self.changes = 0
        self.changed = asyncio.Event()
        self.waiting = 1

    def change(self, stamp: Stamp) -> None:
        self.stamp = stamp
        self.changes += 1
        self.changed.set()
        self.changed.clear()  # who waits now is woken


class Changes:
    """`of(path)` gives something each time what is at the path has changed, come or gone; until it is closed."""

    def __init__(self) -> None:
        self._held: dict[Path, Watched] = {}
        self._others = asyncio.Event()  # other paths are held than are watched
        self._task: asyncio.Task[None] | None = None

    async def of(self, path: Path) -> AsyncIterator[None]:
        """Of several changes that follow closely not each one is told."""
        since = time.time_ns() - RECENT
        stamp = await asyncio.to_thread(_stamp, path)
        held = self._hold(path, stamp)
        if held is None:
            return
        told = held.changes
        try:
            if stamp is not None and stamp[-1] > since:  # perhaps after it was read, or subscribed to
                yield
            while True:
                while held.changes == told:
                    await held.changed.wait()
                told = held.changes
                yield
        finally:
            held.waiting -= 1
            if not held.waiting:
                del self._held[path]
                self._others.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _hold(self, path: Path, stamp: Stamp) -> Watched | None:
        held = self._held.get(path)
        if held is not None:
            held.waiting += 1
            return held
        if len(self._held) >= MAX_WATCHED:
            log.warning("%d files are watched, the most there can be: changes of %s are not told", MAX_WATCHED, path)
            return None
        held = self._held[path] = Watched(stamp)
        self._others.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return held

    async def _run(self) -> None:
        """Watch what is held, until nothing is."""
        from toolgate.server import watch  # start-up: the library it needs is not small

        while self._held:
            self._others.clear()
            following = asyncio.create_task(watch.follow("subscribed", self._roots, self._look, DEBOUNCE))
            others = asyncio.create_task(self._others.wait())
            try:
                await asyncio.wait([others])
            finally:
                others.cancel()
                following.cancel()
                await asyncio.wait([following])

    def _roots(self) -> Iterable[Path]:
        """In the watch's thread."""
        return {_nearest(folder) for path in list(self._held) for folder in (path, path.parent)}

    async def _look(self) -> None:
        before = dict(self._held)
        stamps = await asyncio.to_thread(lambda: {path: _stamp(path) for path in before})
        for path, held in before.items():
            if held.stamp != stamps[path]:
                held.change(stamps[path])


def _stamp(path: Path) -> Stamp:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _nearest(path: Path) -> Path:
    """The folder itself, or the nearest there is above it."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())
