"""Find out when subscribed files change, by one watch for all of them.

A change in the folder of a file, or of a link on the way to it, wakes the watch. What counts is the file's own stamp.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

MAX_WATCHED = 2_000  # files and folders: the system has some ten thousand watches for all that runs on it
DEBOUNCE = 300  # ms that changes are gathered for while they keep coming

RETRY = 30.0  # seconds until a watch that has ended is tried again: where no watches are left, each try logs a line
RECENT = 100_000_000  # ns before a watch begins in which a change is told, too: the way here takes a few threads
MAX_LINKS = 40  # on the way to a file: what Linux follows

Stamp = tuple[int, int, int, int] | None  # None: there is nothing

log = logging.getLogger(__name__)


class WatchedPath:
    """A path that somebody waits for a change of."""

    def __init__(self, stamp: Stamp, root: Path | None) -> None:
        self.stamp = stamp
        self.root = root
        self.changes = 0
        self.changed = asyncio.Event()
        self.waiting = 1

    def change(self, stamp: Stamp) -> None:
        self.stamp = stamp
        self.changes += 1
        self.changed.set()
        self.changed.clear()  # who waits now is woken


class FileChanges:
    """`of(path)` gives something each time what is at the path has changed, come or gone; until it is closed."""

    def __init__(self) -> None:
        self._paths: dict[Path, WatchedPath] = {}
        self._is_full = False  # and the log has it
        self._others = asyncio.Event()  # other paths are held than are watched
        self._task: asyncio.Task[None] | None = None

    async def follow(self, path: Path, root: Path | None = None) -> AsyncIterator[None]:
        """Of several changes that follow closely not each one is told. That a folder above has moved is seen where it
        is inside `root`, or the file's own."""
        since = time.time_ns() - RECENT
        stamp = await asyncio.to_thread(_stamp, path)
        held = self._add(path, stamp, root)
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
                del self._paths[path]
                self._others.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _add(self, path: Path, stamp: Stamp, root: Path | None) -> WatchedPath | None:
        held = self._paths.get(path)
        if held is not None:
            held.waiting += 1
            return held
        if len(self._paths) >= MAX_WATCHED:
            if not self._is_full:
                self._is_full = True
                log.warning("%d files are watched, the most there can be: changes of others are not told", MAX_WATCHED)
            return None
        self._is_full = False
        held = self._paths[path] = WatchedPath(stamp, root)
        self._others.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return held

    async def _run(self) -> None:
        """Watch what is held, until nothing is."""
        from toolgate.server import watch  # start-up: the library it needs is not small

        while self._paths:
            self._others.clear()
            following = asyncio.create_task(watch.watch_folders("subscribed", self._roots, self._check, DEBOUNCE))
            others = asyncio.create_task(self._others.wait())
            try:
                await asyncio.wait([others, following], return_when=asyncio.FIRST_COMPLETED)
                if following.done():  # no watches were left, or worse; the next one sees what has changed since
                    if following.exception() is not None:
                        log.error("the watch of subscribed files has ended", exc_info=following.exception())
                    await asyncio.wait([others], timeout=RETRY)
            finally:
                others.cancel()
                following.cancel()
                await asyncio.wait([following])

    def _roots(self) -> Iterable[Path]:
        """In the watch's thread."""
        held = [(path, held.root) for path, held in list(self._paths.items())]
        return {
            _nearest_folder(folder)
            for path, root in held
            for way in _linked_paths(path)
            for folder in _folders_above(way, root)
        }

    async def _check(self) -> None:
        before = dict(self._paths)
        stamps = await asyncio.to_thread(lambda: {path: _stamp(path) for path in before})
        for path, held in before.items():
            if held.stamp != stamps[path]:
                held.change(stamps[path])


def _stamp(path: Path) -> Stamp:
    try:
        found = os.stat(path)
        switched = [link.lstat().st_ctime_ns for link, _ in _resolve_links(path)]
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, max(found.st_ctime_ns, *switched, 0)


def _resolve_links(path: Path) -> Iterator[tuple[Path, Path]]:
    """Each link on the way, and what becomes of the path as it is followed."""
    for _ in range(MAX_LINKS):
        link = next((part for part in (*reversed(path.parents), path) if part.is_symlink()), None)
        if link is None:
            return
        with contextlib.suppress(OSError):  # another by now: the change will be told
            path = Path(os.path.normpath(link.parent / link.readlink() / path.relative_to(link)))
        yield link, path


def _linked_paths(path: Path) -> list[Path]:
    return [path, *(way for _, way in _resolve_links(path))]


def _folders_above(path: Path, root: Path | None) -> list[Path]:
    """The path, its folder, and all folders above it as far as `root`, which is what they must be inside."""
    inside = [folder for folder in path.parents if root is not None and folder.is_relative_to(root)]
    return [path, path.parent, *inside]


def _nearest_folder(path: Path) -> Path:
    """The folder itself, or the nearest there is above it."""
    return next(folder for folder in (path, *path.parents) if os.path.isdir(folder))
