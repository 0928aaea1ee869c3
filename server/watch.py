"""Watch folders, and call back when their entries change; and find out when subscribed files change.

Only folders whose own entries matter are watched, each by itself and never as a tree: a large project or home directory
costs nothing. For a folder that does not exist the nearest one above it is watched. For all
subscribed files there is one watch: a change in the folder of a file, or of a link on the way to it, wakes it. What
counts is the file's own stamp.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from toolgate.tools.builtin.skills.skills import Skills

if TYPE_CHECKING:
    from watchfiles._rust_notify import RustNotify

# watchfiles gathers the system's events in a thread of its own, and looks there for them at this step. It is
# also how long the end of a watch may take, and how long the folders must be quiet before they are looked at.
STEP = 80  # ms
DEBOUNCE = 1_000  # ms; longest that changes are gathered for while they keep coming
MAX_WATCHED = 2_000  # files and folders: the system has some ten thousand watches for all that runs on it
FILES_DEBOUNCE = 300  # ms that changes of files are gathered for while they keep coming
RETRY = 30.0  # seconds until a watch that has ended is tried again: where no watches are left, each try logs a line
RECENT = 100_000_000  # ns before a watch begins in which a change is told, too: the way here takes a few threads
MAX_LINKS = 40  # on the way to a file: what Linux follows

Stamp = tuple[int, int, int, int] | None  # None: there is nothing

T = TypeVar("T")

log = logging.getLogger(__name__)


async def watch_skills(skills: Skills, changed: Callable[[], None]) -> None:
    """Call `changed` after each change of a name or description in the catalogue; until cancelled.

    What counts as a change is what differs from the last `skills.describe`.
    """
    told = skills.last_described

    async def look() -> None:
        nonlocal told
        catalogue = await asyncio.to_thread(skills.catalogue)
        now = {skill.name: skill.description for skill in catalogue.values()}
        before, told = told, now
        if before is not None and now != before:
            changed()

    await watch_folders("skill", skills.watch_roots, look)


async def watch_folders(
    what: str,
    roots: Callable[[], Iterable[Path]],
    look: Callable[[], Awaitable[None]],
    debounce: int = DEBOUNCE,
) -> None:
    """Wait for `look` when the watch has begun, and after each change of an entry of the folders that `roots` gives
    then, in a thread; until cancelled.

    Start it when the first request is answered: its imports take 50 ms. Returns early, with a line in the log,
    where the system has no watches left.
    """
    from concurrent.futures import ThreadPoolExecutor  # start-up

    loop = asyncio.get_running_loop()
    stop = threading.Event()
    thread = ThreadPoolExecutor(1, "watch")  # its own: it would hold one of the loop's few for good

    async def in_thread(work: Callable[..., T], *given: object) -> T:
        under_way = loop.run_in_executor(thread, work, *given)
        try:
            return await asyncio.shield(under_way)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([under_way])
            raise

    try:
        while True:
            try:
                notify = await in_thread(_start_watch, roots, stop)
            except (OSError, RuntimeError) as error:  # no watches left; no watchers left (the library's own error)
                log.warning("%s folders can't be watched, what is new is seen at the next start: %s", what, error)
                return
            with contextlib.closing(notify):  # armed anew each time, as a folder may be another of the same name
                await _try_look(what, look)  # after arming: nothing is missed
                try:
                    await in_thread(notify.watch, debounce, STEP, 0, stop)
                except RuntimeError as error:  # the library's own, such as of a name that is not UTF-8: a change, too
                    log.debug("%s folders: %s", what, error)
                    await asyncio.sleep(debounce / 1000)  # as long as it would have gathered changes for
    finally:
        thread.shutdown()


async def _try_look(what: str, look: Callable[[], Awaitable[None]]) -> None:
    """One look that fails is not the end of the watch: the next change may be what heals it."""
    try:
        await look()
    except Exception:
        log.exception("the %s folders can't be looked at", what)


def _start_watch(roots: Callable[[], Iterable[Path]], stop: threading.Event) -> "RustNotify":
    from watchfiles._rust_notify import RustNotify  # start-up; `watch` has no word for "not deeply, several"

    while True:
        try:
            return RustNotify(list(filter(_is_utf8, map(str, roots()))), False, False, 0, False, True)
        except FileNotFoundError:  # gone since: there are other roots now
            if stop.is_set():
                raise


def _is_utf8(name: str) -> bool:
    """Whether the library can take it: it knows no other file names."""
    return name.encode("utf-8", "ignore") == os.fsencode(name)


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
        while self._paths:
            self._others.clear()
            following = asyncio.create_task(watch_folders("subscribed", self._roots, self._check, FILES_DEBOUNCE))
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
