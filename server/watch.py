"""Watch folders, and call back when their entries change.

Only folders whose own entries matter are watched, each by itself and never as a tree: a large project or home directory
costs nothing. For a folder that does not exist the nearest one above it is watched.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from toolgate.tools.builtin.skills.skills import Skills

if TYPE_CHECKING:
    from watchfiles._rust_notify import RustNotify

# watchfiles gathers the system's events in a thread of its own, and looks there for them at this step. It is
# also how long the end of a watch may take, and how long the folders must be quiet before they are looked at.
STEP = 80  # ms
DEBOUNCE = 1_000  # ms; longest that changes are gathered for while they keep coming

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
            with closing(notify):  # armed anew each time, as a folder may be another of the same name
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
