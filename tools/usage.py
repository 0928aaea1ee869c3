"""How much a workspace holds, measured while its commands may write. Knows nothing of what they are.

Where a file system has no quota for a folder, this is the next best: it is looked at again and again while something
runs, and once more after it. What is written between two looks is over the limit before anybody knows; one file is
bounded by `file-size` all the same.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolgate.tools.limits import Limits
from toolgate.tools.process import Launch, NotStarted
from toolgate.tools.processes import Processes

FIRST = 1.0  # seconds from a start, or an end, to the look that follows it
SHARE = 5  # looking takes at most one part in so many of the time
LONGEST = 60.0  # seconds: who has so many files that counting them takes longer has too many
SOON = 5.0  # seconds that a command waits for it, where there was too much
GROWN = 2**20  # bytes more than at the last look, where that was over the limit already: time to end what writes
MAX_SAID = 64 * 2**10
# Two numbers: bytes on disk, and files and folders. What vanishes meanwhile is complained of on standard error.
COUNT = 'du -xsc -B1 -- "$@" 2>/dev/null | tail -n1; du -xsc --inodes -- "$@" 2>/dev/null | tail -n1'

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes, and files and folders. `why` says what is too much, "" where nothing is."""

    size: int = 0
    entries: int = 0
    why: str = ""


class Usage:
    """Of `folders`, the first of which is the workspace. `processes` runs the counting, outside of any sandbox. `over`
    is called with the reason when what runs has to end."""

    def __init__(
        self, processes: Processes, folders: Sequence[Path], limits: Limits, over: Callable[[str], None]
    ) -> None:
        self.held = Held()
        self._processes = processes
        self._folders = folders
        self._limits = limits
        self._over = over
        self._running = 0
        self._watching: asyncio.Task[None] | None = None
        self._again = False
        self._closed = False

    def began(self) -> None:
        """Something runs that may write."""
        self._running += 1
        self._watch()

    def ended(self) -> None:
        self._running -= 1
        self._watch()

    async def again(self) -> None:
        """Look now, where there was too much: some of it may have been removed."""
        if self.held.why:
            self.held = await self._measured(SOON)

    def close(self) -> None:
        """Look no more, whatever ends from now on."""
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()

    def _watch(self) -> None:
        if self._closed or not (self._limits.workspace or self._limits.entries):
            return
        self._again = True
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        pause = FIRST
        while self._again or self._running:
            self._again = False
            await asyncio.sleep(pause)
            began = time.monotonic()
            before, self.held = self.held, await self._measured()
            if self.held.why and (not before.why or self.held.size > before.size + GROWN):
                self._over(self.held.why)
            pause = max(FIRST, (time.monotonic() - began) * SHARE)

    async def _measured(self, within: float = LONGEST) -> Held:
        words = ["bash", "-c", COUNT, "du", *map(str, self._folders)]
        said = bytearray()

        def take(data: bytes) -> bool:
            said.extend(data[: MAX_SAID - len(said)])
            return len(said) < MAX_SAID

        try:
            counting = await self._processes.start(Launch(words, Path("/"), Path("/"), PLAIN), take)
        except NotStarted as error:
            log.warning("the size of %s can't be told: %s", self._folders[0], error)
            return self.held
        try:
            async with asyncio.timeout(within):
                await asyncio.shield(counting.ended)
        except TimeoutError:
            return self.held if within < LONGEST else self._judged(self.held.size, self._limits.entries + 1)
        finally:
            if not counting.gone.done():
                counting.terminate(0.0)
        numbers = [int(line.split()[0]) for line in bytes(said).splitlines() if line.split()[0].isdigit()]
        return self._judged(*numbers) if len(numbers) == 2 else self.held

    def _judged(self, size: int, entries: int) -> Held:
        limits = self._limits
        if limits.workspace and size > limits.workspace:
            why = f"the workspace holds {size:,} bytes, over its limit of {limits.workspace:,}"
        elif limits.entries and entries > limits.entries:
            why = f"the workspace has {entries:,} files and folders, over its limit of {limits.entries:,}"
        else:
            why = ""
        return Held(size, entries, why)


PLAIN = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
