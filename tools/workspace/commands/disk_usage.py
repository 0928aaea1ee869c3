"""Measure a workspace repeatedly while its commands may write.

It stands in for a quota, which few file systems have for a folder. It measures while something runs, and once after.
Data written between two measurements can exceed the limit. From then on commands may write no file
(Launch.remove_only), and the running ones are ended.

If the commands have their own user and the server is root, nameless data counts too: removed files that are open or
mapped, and shared memory, which per-process limits miss.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from toolgate.tools.workspace.commands.environment import CommandEnvironment
from toolgate.tools.workspace.processes.process import CommandStartError, Launch

FIRST = 1.0  # seconds from a start or an end to the next measurement
SHARE = 5  # measuring takes at most one part in so many of the time
SLOWER = 2  # so many times longer is each pause while only programs run, nobody writes to them and nothing changes
QUIET_MOST = 15.0  # seconds of such a pause: a program may wait for its caller for hours
LONGEST = 60.0  # seconds; a tree that takes longer to count has too many files
SOON = 5.0  # seconds that a command waits for a new measurement, after too much
SLACK = 2**20  # bytes that a file system may book later than the write
MAX_CWD_FILES = 64  # files that commands may leave to record their directories
MAX_SAID = 64 * 2**10
# Prints bytes on disk, and files and folders, in one walk; a file with several names counts once. Then nameless bytes
# on disk and in memory. Vanished files cause errors on standard error. The owner comes from a process's status: a
# process can change the owner of its /proc folder (PR_SET_DUMPABLE).
COUNT = r"""
uid=$1 memory=$2; shift 2
find "$@" -xdev -printf '%y%n %D %i %b\n' 2>/dev/null |
    awk '/^[^d]/ && !/^.1 / && seen[$2, $3]++ { next } { blocks += $4; entries++ }
    END { if (NR) printf "%.0f\n%.0f\n", blocks * 512, entries }'
[ "$uid" -ge 0 ] || exit 0
open=()
for status in $(grep -lE "^Uid:([[:space:]][0-9]+)*[[:space:]]$uid([[:space:]]|$)" /proc/[0-9]*/status 2>/dev/null); do
    open+=("${status%status}fd" "${status%status}map_files")
done
[ "${#open[@]}" = 0 ] ||
    find -L "${open[@]}" -mindepth 1 -maxdepth 1 -type f -links 0 -printf '%D %i %b\n' 2>/dev/null |
    sort -u | awk -v disk="$(stat -c %d -- "$1")" -v memory="$memory" \
    '$1 == disk { d += $3 } $1 == memory { m += $3 } END { printf "%.0f\n%.0f\n", d * 512, m * 512 }'
"""

log = logging.getLogger(__name__)


class DiskUsage(msgspec.Struct, frozen=True):
    """Bytes, files and folders, and bytes of shared memory. `excess` says what is too much, or ""; `is_full`: the
    workspace itself is over its limit."""

    size: int = 0
    entries: int = 0
    shared_memory: int = 0
    excess: str = ""
    is_full: bool = False


class DiskUsageWatcher:
    """Measures `folders`, the workspace first, in `environment`. `max_shared_memory` is in bytes; 0 skips it.
    `on_excess` is called with the reason when running commands must end."""

    def __init__(
        self,
        environment: CommandEnvironment,
        folders: Sequence[Path],
        max_shared_memory: int,
        on_excess: Callable[[str], None],
    ) -> None:
        self.usage = DiskUsage()
        self._environment = environment
        self._folders = folders
        self._limits = environment.limits
        self._shared = max_shared_memory
        self._on_excess = on_excess
        self._least = DiskUsage()  # since it is too much
        self._running = 0
        self._programs = 0
        self._news = asyncio.Event()  # something began since the last measurement
        self._watching: asyncio.Task[None] | None = None
        self._again = False
        self._closed = False

    def command_started(self) -> None:
        """Measure while this command runs."""
        self._running += 1
        self._watch()

    def command_ended(self) -> None:
        self._running -= 1
        self._watch()

    def program_started(self) -> None:
        """Measure while this program runs, less often as long as it seems to wait."""
        self._programs += 1
        self._watch()

    def program_ended(self) -> None:
        self._programs -= 1
        self._watch()

    def note_input(self) -> None:
        """Measure soon: a program got something to do."""
        self._news.set()

    async def remeasure(self) -> None:
        """Measure now if the last result was too much: files may have been removed."""
        if self.usage.excess:
            self._update(await self._measure(SOON))

    @property
    def is_measuring(self) -> bool:
        return self._watching is not None and not self._watching.done()

    def close(self) -> None:
        """Stop measuring, whatever ends from now on."""
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()

    def _watch(self) -> None:
        if self._closed or not (self._limits.workspace or self._limits.entries or self._shared):
            return
        self._again = True
        self._news.set()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._measure_repeatedly())

    async def _measure_repeatedly(self) -> None:
        pause = quiet = FIRST
        while self._again or self._running or self._programs:
            self._again = False
            await self._sleep(pause, quiet)
            began, before = time.monotonic(), self.usage
            if self._update(await self._measure()):
                self._on_excess(self.usage.excess)
            pause = max(FIRST, (time.monotonic() - began) * SHARE)
            waits = self._programs > 0 and not self._running
            is_quiet = waits and self.usage == before and not self._news.is_set()
            quiet = min(quiet * SLOWER, QUIET_MOST) if is_quiet else FIRST

    async def _sleep(self, pause: float, quiet: float) -> None:
        """Sleep for `quiet` seconds, or if something begins for `pause` seconds from then, and that long at least."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, quiet - pause)):
                await self._news.wait()
        self._news.clear()
        await asyncio.sleep(pause)

    def _update(self, usage: DiskUsage) -> bool:
        """Return whether usage became too much, or grew beyond that."""
        before, self.usage = self.usage, usage
        least = self._least if before.is_full else usage
        # Growth that is not chance: since the last measurement, and since it became too much
        has_grown = usage.size > max(before.size, least.size + SLACK)
        has_grown = has_grown or usage.entries > max(before.entries, least.entries + MAX_CWD_FILES)
        self._least = DiskUsage(min(usage.size, least.size), min(usage.entries, least.entries))
        return bool(usage.excess) and (not before.excess or not usage.is_full or has_grown)

    async def _measure(self, within: float = LONGEST) -> DiskUsage:
        uid = -1  # whose processes hold nameless files; without a command none does, and a look at all takes long
        if (self._running or self._programs) and self._environment.uid is not None and os.geteuid() == 0:
            uid = self._environment.uid
        output = bytearray()

        def take(data: bytes) -> bool:
            output.extend(data[: MAX_SAID - len(output)])
            return len(output) < MAX_SAID

        try:
            words = ["bash", "-c", COUNT, "count", str(uid), str(_memory_device()), *map(str, self._folders)]
            counting = await self._environment.server_runner.start(Launch(words, Path("/"), Path("/"), PLAIN), take)
        except (CommandStartError, OSError) as error:  # no descriptor is free: the next measurement may have one
            log.warning("cannot measure the size of %s: %s", self._folders[0], error)
            return self.usage
        try:
            async with asyncio.timeout(within):
                await asyncio.shield(counting.ended)
        except TimeoutError:
            return self.usage if within < LONGEST else self._judge(self.usage.size, self._limits.entries + 1)
        finally:
            if not counting.gone.done():
                counting.terminate(0.0)
        numbers = [int(line.split()[0]) for line in bytes(output).splitlines() if line.split()[0].isdigit()]
        return self._judge(*numbers) if len(numbers) in (2, 4) else self.usage

    def _judge(self, size: int, entries: int, removed: int = 0, shared: int = 0) -> DiskUsage:
        limits, size = self._limits, size + removed
        usage = DiskUsage(size, entries, shared)
        if limits.workspace and size > limits.workspace:
            more = f", {removed:,} of them in removed files that are open" if removed else ""
            most = f"over its limit of {limits.workspace:,} (--limit workspace)"
            return replace(usage, excess=f"the workspace holds {size:,} bytes{more}, {most}", is_full=True)
        if limits.entries and entries > limits.entries:
            most = f"over its limit of {limits.entries:,} (--limit entries)"
            return replace(usage, excess=f"the workspace has {entries:,} files and folders, {most}", is_full=True)
        if self._shared and shared > self._shared:
            most = f"over the limit of {self._shared:,} (--limit memory)"
            return replace(usage, excess=f"the commands hold {shared:,} bytes of shared memory, {most}")
        return usage


@cache
def _memory_device() -> int:
    """Return the device number of files without a file system: shared memory, and memfd_create(2)."""
    if not hasattr(os, "memfd_create"):  # Linux only
        return 0
    made = os.memfd_create("toolgate", os.MFD_CLOEXEC)
    try:
        return os.fstat(made).st_dev
    finally:
        os.close(made)


PLAIN = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
