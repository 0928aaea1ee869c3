"""Watches the skill folders, and says when the catalogue is no longer what it was. Knows nothing of who is
told.

What is watched is the few folders whose own entries matter, each by itself: never a tree, so a large project
or home directory costs nothing. Where a skill folder is not there yet, it is the nearest folder above it that
is.
"""

import asyncio
import logging
import threading
from collections.abc import Callable

from toolgate.tools.skills import Skills

# watchfiles gathers the system's events in a thread of its own, and looks there for them at this step. It is
# also how long the end of a watch may take, and how long the folders must be quiet before they are looked at.
STEP = 100  # ms
DEBOUNCE = 1_000  # ms; longest that changes are gathered for while they keep coming

log = logging.getLogger(__name__)


async def watch(skills: Skills, changed: Callable[[], None]) -> None:
    """Call `changed`, in the loop, after each change of a name or description in the catalogue; until
    cancelled.

    What counts as a change is what differs from the last `skills.describe`. Start it when the first request
    is answered: its imports take 50 ms. Returns early, with a line in the log, where the system has no
    watches left.
    """
    from concurrent.futures import ThreadPoolExecutor  # start-up

    loop = asyncio.get_running_loop()
    stop = threading.Event()
    thread = ThreadPoolExecutor(1, "watch")  # its own: it would hold one of the loop's few for good
    watching = loop.run_in_executor(thread, _watch, skills, lambda: loop.call_soon_threadsafe(changed), stop)
    try:
        await asyncio.shield(watching)
    finally:
        stop.set()
        await asyncio.wait([watching])
        thread.shutdown()


def _watch(skills: Skills, tell: Callable[[], object], stop: threading.Event) -> None:
    from watchfiles._rust_notify import RustNotify  # start-up; `watch` has no word for "not deeply, several"

    told = skills.told
    while not stop.is_set():
        roots = [str(root) for root in skills.watch_roots()]
        try:
            notify = RustNotify(roots, False, False, 0, False, True)
        except FileNotFoundError:  # gone since: there are other roots now
            continue
        except OSError as error:
            log.warning("skill folders can't be watched, new skills are seen at the next start: %s", error)
            return
        with notify:  # armed anew each time, as a folder may be another of the same name; then nothing is missed
            now = {skill.name: skill.description for skill in skills.catalogue().values()}
            if told is not None and now != told:
                tell()
            told = now
            notify.watch(DEBOUNCE, STEP, 0, stop)
