"""Watch folders and report changes of their entries, and of the files that clients subscribed to.

Each folder is watched by itself, never as a tree: a large project or home directory costs nothing. For a missing folder
the nearest existing one above is watched. All subscribed files share one watch. It wakes on changes in the folder of a
file, or of a link on the way to it; a file counts as changed when its own stamp differs.
"""

import asyncio
import contextlib
import logging
import os
import stat
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from watchfiles._rust_notify import RustNotify

# The step at which watchfiles' thread looks for events. It is also how long ending a watch may take, and how long
# folders must be quiet before they are looked at.
STEP = 80  # ms
DEBOUNCE = 1_000  # ms; the longest that changes are gathered while more keep coming
MAX_WATCHED = 2_000  # files and folders: the system has some ten thousand watches for all its processes
FILES_DEBOUNCE = 300  # ms that changes of files are gathered while more keep coming
POLL = 2.0  # seconds between two looks while the system has no watches left
RETRY = 30.0  # seconds before a watch that has failed is tried again: each failure logs a traceback
RECENT = 100_000_000  # ns before a watch begins in which changes are still reported: starting it passes several threads
NOTIFY = "watchfiles._rust_notify"
LOADING = threading.Lock()  # of NOTIFY: each watch begins in its own thread
MAX_STAMPED = 2_000  # entries of a folder whose changes are seen: a look takes some milliseconds
MAX_LINKS = 40  # on the way to a file; Linux's own limit

Stamp = tuple[int, int, int, int] | None  # None: no file

T = TypeVar("T")

log = logging.getLogger(__name__)


async def watch_folders(
    what: str,
    roots: Callable[[], Iterable[Path]],
    look: Callable[[], Awaitable[None]],
    debounce: int = DEBOUNCE,
    *,
    poll: float = POLL,
) -> None:
    """Call `look` when the watch begins and after each change in the folders that `roots`, called in a thread, returns.
    Runs until cancelled.

    Start it when the first request is answered: its imports take 50 ms. While the system has no watches left, `look` is
    called every `poll` seconds; a log line says so once.
    """
    from concurrent.futures import ThreadPoolExecutor  # start-up

    loop = asyncio.get_running_loop()
    stop = threading.Event()
    thread = ThreadPoolExecutor(1, "watch")  # its own: it would occupy one of the loop's few threads for good

    async def in_thread(work: Callable[..., T], *given: object) -> T:
        under_way = loop.run_in_executor(thread, work, *given)
        try:
            return await asyncio.shield(under_way)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([under_way])
            raise

    is_polling = False
    try:
        while True:
            try:
                notify = await in_thread(_start_watch, roots, stop)
            except (OSError, RuntimeError) as error:  # no watches or instances left (the library's error)
                if not is_polling:
                    log.warning("%s folders can't be watched: changes are seen within %g s: %s", what, poll, error)
                is_polling = True
                await _try_look(what, look)
                await asyncio.sleep(poll)
                continue
            is_polling = False
            with contextlib.closing(notify):  # opened again each time: the same path may be another folder now
                await _try_look(what, look)  # after the watch is open, so nothing is missed
                try:
                    await in_thread(notify.watch, debounce, STEP, 0, stop)
                except RuntimeError as error:  # the library's, for example a name that is not UTF-8
                    log.debug("%s folders: %s", what, error)
                    await asyncio.sleep(debounce / 1000)  # as long as changes would have been gathered
    finally:
        thread.shutdown()


async def _try_look(what: str, look: Callable[[], Awaitable[None]]) -> None:
    """Call `look` and log a failure: the next change may fix it."""
    try:
        await look()
    except Exception:
        log.exception("the %s folders can't be looked at", what)


def _start_watch(roots: Callable[[], Iterable[Path]], stop: threading.Event) -> "RustNotify":
    notify = _load_rust_notify()
    while True:
        try:
            return notify(list(filter(_is_utf8, map(str, roots()))), False, False, 0, False, True)
        except FileNotFoundError:  # gone meanwhile: the roots have changed
            if stop.is_set():
                raise


def _load_rust_notify() -> "type[RustNotify]":
    """Return watchfiles' class, as its `watch` can't take several flat folders. The package itself is not imported: it
    imports multiprocessing, pickle, json and anyio, which stay in memory."""
    with LOADING:
        if NOTIFY not in sys.modules:
            package = PathFinder.find_spec(NOTIFY.partition(".")[0])
            spec = package and PathFinder.find_spec(NOTIFY, package.submodule_search_locations)
            if spec is None or spec.loader is None:
                raise ModuleNotFoundError(f"{NOTIFY} is missing", name=NOTIFY)
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            sys.modules[NOTIFY] = module
        found: type[RustNotify] = sys.modules[NOTIFY].RustNotify
        return found


def _is_utf8(name: str) -> bool:
    """Return whether the library can watch this path: it takes UTF-8 names only."""
    return name.encode("utf-8", "ignore") == os.fsencode(name)


class WatchedPath:
    """A path that a subscription waits for."""

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
        self.changed.clear()  # wakes those waiting now


class FileChanges:
    """Report changes of files: `of(path)` yields when the file at the path changed, appeared or went, until closed."""

    def __init__(self, *, poll: float = POLL) -> None:
        self._poll = poll
        self._paths: dict[Path, WatchedPath] = {}
        self._is_full = False  # and the log says so
        self._others = asyncio.Event()  # set when other paths are held than are watched
        self._task: asyncio.Task[None] | None = None

    async def follow(self, path: Path, root: Path | None = None, since: float | None = None) -> AsyncIterator[None]:
        """Yield after changes of the path; close ones may count as one. A folder moved above the path is noticed inside
        `root`, or if it is the file's own. Changes count from `since` on, in seconds since 1970, by default now."""
        counts_from = (time.time_ns() if since is None else int(since * 1e9)) - RECENT
        stamp = await asyncio.to_thread(_stamp, path)
        held = self._add(path, stamp, root)
        if held is None:
            return
        told = held.changes
        try:
            if stamp is not None and stamp[-1] > counts_from:  # perhaps changed after it was read or subscribed to
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
                log.warning("%d files are watched, the most allowed: changes of others are not reported", MAX_WATCHED)
            return None
        self._is_full = False
        held = self._paths[path] = WatchedPath(stamp, root)
        self._others.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return held

    async def _run(self) -> None:
        """Watch the held paths until none is left."""
        while self._paths:
            self._others.clear()
            watch = watch_folders("subscribed", self._roots, self._check, FILES_DEBOUNCE, poll=self._poll)
            following = asyncio.create_task(watch)
            others = asyncio.create_task(self._others.wait())
            try:
                await asyncio.wait([others, following], return_when=asyncio.FIRST_COMPLETED)
                if following.done():  # a fault; the next watch reports changes since
                    log.error("the watch of subscribed files has ended", exc_info=following.exception())
                    await asyncio.wait([others], timeout=RETRY)
            finally:
                others.cancel()
                following.cancel()
                await asyncio.wait([following])

    def _roots(self) -> Iterable[Path]:
        """Return the folders to watch. Runs in the watch's thread."""
        held = [(path, held.root) for path, held in list(self._paths.items())]
        return {
            _nearest_folder(folder)
            for path, root in held
            for way in (path, *(way for _, way in _resolve_links(path)))
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
    size, modified = _stamp_entries(path) if stat.S_ISDIR(found.st_mode) else (found.st_size, found.st_mtime_ns)
    return found.st_ino, size, max(modified, found.st_mtime_ns), max(found.st_ctime_ns, *switched, 0)


def _stamp_entries(folder: Path) -> tuple[int, int]:
    """Return the size of a folder's entries together, and when one was last modified. Links are not followed."""
    size = modified = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, MAX_STAMPED):
            with contextlib.suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                size, modified = size + found.st_size, max(modified, found.st_mtime_ns)
    return size, modified


def _resolve_links(path: Path) -> Iterator[tuple[Path, Path]]:
    """Return each link on the way, and the path after following it."""
    for _ in range(MAX_LINKS):
        link = next((part for part in (*reversed(path.parents), path) if part.is_symlink()), None)
        if link is None:
            return
        with contextlib.suppress(OSError):  # replaced meanwhile: that change will be reported
            path = Path(os.path.normpath(link.parent / link.readlink() / path.relative_to(link)))
        yield link, path


def _folders_above(path: Path, root: Path | None) -> list[Path]:
    """Return the path, its folder, and all folders above it up to `root`, which must contain them."""
    inside = [folder for folder in path.parents if root is not None and folder.is_relative_to(root)]
    return [path, path.parent, *inside]


def _nearest_folder(path: Path) -> Path:
    """Return the folder itself, or the nearest existing one above it."""
    return next(folder for folder in (path, *path.parents) if os.path.isdir(folder))
