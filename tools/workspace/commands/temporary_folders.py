"""Give each read-only command a folder for temporary files (TMPDIR), watch its size, and remove it at the end.

Where the command has a /tmp of its own it needs none. Sorting, large here-documents and tests need one.
"""

import asyncio
import logging
import os
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from toolgate.tools.workspace.commands.environment import CommandEnvironment
from toolgate.tools.workspace.files.safe_walk import walk_folders

NAME = "tmp"  # in the folder of a run
MAX_SIZE = 512 * 2**20  # bytes, where no limit says more: as many as a sandbox's /tmp has
EVERY = 0.25  # seconds between two measurements
SHARE = 5  # measuring takes at most one part in so many of the time
REMOVE_WITHIN = 5.0  # seconds that a call waits until its command's folder is gone

log = logging.getLogger(__name__)


class TemporaryFolders:
    """The folders of one workspace's read-only commands, by the id of the run. `find_folder` returns that of a run."""

    def __init__(self, environment: CommandEnvironment, find_folder: Callable[[int], Path]) -> None:
        self._environment = environment
        self._find_folder = find_folder
        self.max_size = environment.limits.tmp or MAX_SIZE
        self._watches: dict[int, asyncio.Task[None]] = {}
        self._removing: dict[int, asyncio.Future[None]] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._watches or self._removing)

    def make(self, run_id: int, on_excess: Callable[[str], None]) -> Path | None:
        """Return a new folder, or None if the command needs none. Raises OSError. `on_excess` is called with the reason
        when it holds too much."""
        if self._environment.has_own_tmp:
            return None
        folder, uid = self._find_folder(run_id) / NAME, self._environment.uid
        folder.mkdir(mode=0o700)
        if uid is not None:
            os.chown(folder, uid, uid)
        self._watches[run_id] = asyncio.ensure_future(self._watch(folder, on_excess))
        return folder

    def limit_files(self, limits: Mapping[int, int]) -> Mapping[int, int]:
        """Return the resource limits for a command with such a folder: no file is larger than the folder may be."""
        most = min(limits.get(resource.RLIMIT_FSIZE, self.max_size), self.max_size)
        return {**limits, resource.RLIMIT_FSIZE: most}

    def start_removing(self, run_id: int) -> None:
        """Remove the folder of a command that has ended."""
        watch = self._watches.pop(run_id, None)
        if watch is None:
            return
        watch.cancel()
        folder = self._find_folder(run_id) / NAME
        try:
            folder.rmdir()
        except OSError:  # it is not empty
            removing = asyncio.get_running_loop().run_in_executor(None, remove_folder, folder)
            self._removing[run_id] = removing
            removing.add_done_callback(lambda _: self._removing.pop(run_id, None))

    async def wait_removed(self, run_id: int | None = None, timeout: float = REMOVE_WITHIN) -> None:
        """Wait until the folder of a command is gone; None: those of all."""
        under_way = [each for number, each in self._removing.items() if run_id in (number, None)]
        if under_way:
            await asyncio.wait(under_way, timeout=timeout)

    async def _watch(self, folder: Path, on_excess: Callable[[str], None]) -> None:
        pause = EVERY
        while True:
            await asyncio.sleep(pause)
            began = time.monotonic()
            if await asyncio.to_thread(measure, folder) > self.max_size:
                on_excess(f"its temporary files were over {self.max_size:,} bytes, the most while a plan is active")
                return
            pause = max(EVERY, SHARE * (time.monotonic() - began))


def measure(folder: Path) -> int:
    """Return the bytes on disk of what is in the folder, as far as it can be read. Blocking."""
    size = 0
    try:
        for opened, _ in walk_folders(folder, OSError):
            with os.scandir(opened) as entries:
                size += sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in entries)
    except OSError:  # it changes meanwhile
        return size
    return size


def remove_folder(folder: Path) -> None:
    """Remove the folder with what a command left in it. A failure is logged. Blocking."""
    from toolgate.tools.workspace.files.rmtree import remove_tree  # start-up

    try:
        remove_tree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("the temporary files in %s are not all removed: %s", folder, error)


def remove_leftover(run_folder: Path) -> None:
    """Remove what a server that was killed has left of a run's folder. Blocking."""
    if os.path.lexists(run_folder / NAME):
        remove_folder(run_folder / NAME)
