"""Limit a group of processes, in each hierarchy that has a controller for a limit."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from toolgate.tools.workspace.sandbox.cgroups import kill
from toolgate.tools.workspace.sandbox.cgroups.files import list_groups, read_number
from toolgate.tools.workspace.sandbox.cgroups.versions import Allowance, CgroupVersion

WEIGHT = 100  # what a group has by default
MODEST = 10  # a throttled group keeps one part in so many of its weight
WITHIN = 5.0  # seconds for all to end: SIGKILL takes milliseconds, but a process can be stuck in the kernel
EVERY = 0.5  # seconds between two checks of the CPU time
MUCH = 0.9  # of one processor since the last check: a loop, not a series of short commands
LITTLE = 0.25  # of one: a quiet check
QUIET = 6  # quiet checks in a row before a group gets its weight back


class GroupFolder(msgspec.Struct, frozen=True):
    """The group's folder in one hierarchy, and its controllers there."""

    path: Path
    controllers: frozenset[str]
    version: CgroupVersion

    def limit(self, allowance: Allowance) -> None:
        for controller in self.controllers & self.version.limits.keys():
            self.version.limits[controller](self.path, allowance)

    def read(self, name: str) -> float | None:
        """Return the statistic, or None if this hierarchy does not count it."""
        reading = self.version.statistics[name]
        if reading.controller not in {"", *self.controllers}:
            return None
        return read_number(self.path / reading.file, reading.key) * reading.unit


class Hits(msgspec.Struct, frozen=True):
    """Counts since the last call: processes killed out of memory, and forks refused."""

    oom: int = 0
    processes: int = 0


class Group:
    """Processes that share one allowance. Any thread may call.

    `procs_files`: a process writes `0` to each in turn to enter the group with its later children. It must do so before
    anything else, and start nothing if a write fails. Entering takes the kernel some 10 ms; children of a process in
    the group enter for free.
    """

    def __init__(self, folders: Sequence[GroupFolder], allowance: Allowance) -> None:
        self._folders = folders
        self._allowance = allowance
        self._lock = threading.Lock()
        self._seen = self._read_hits()
        self.procs_files = [folder.path / "cgroup.procs" for folder in folders]

    def processes(self) -> list[int]:
        return kill.processes(self._paths())

    def hits(self) -> Hits:
        """Return the hits since the last call."""
        with self._lock:
            before, self._seen = self._seen, self._read_hits()
            return Hits(self._seen.oom - before.oom, self._seen.processes - before.processes)

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of all its processes so far, or None if no controller counts it."""
        return self._read("seconds")

    def throttle(self, enabled: bool) -> bool:
        """Set a tenth of the CPU weight, or all of it. False if that fails."""
        weight = self._allowance.weight or WEIGHT
        wanted = replace(self._allowance, weight=max(1, weight // MODEST) if enabled else weight)
        folders = [folder for folder in self._folders if "cpu" in folder.controllers]
        try:
            for folder in folders:
                folder.version.limits["cpu"](folder.path, wanted)
        except OSError:  # the group is gone
            return False
        return bool(folders)

    def kill(self, within: float = WITHIN) -> bool:
        """SIGKILL all, forks halted. Return whether none is left after `within` seconds. Raises OSError."""
        try:
            return kill.kill(self._paths, self._halt, time.monotonic() + within)
        finally:
            for folder in self._folders:
                folder.limit(self._allowance)

    def close(self, within: float = WITHIN) -> bool:
        """Kill all processes and remove the group. Return whether it is gone after `within` seconds. Raises OSError."""
        until = time.monotonic() + within
        kill.kill(self._paths, self._halt, until)  # in all hierarchies first: one may hold processes that another halts
        gone = [kill.clear(folder.path, folder.version.halt, until) for folder in self._folders]
        return all(gone)

    @property
    def _halt(self) -> dict[str, str]:
        halt: dict[str, str] = {}
        for folder in self._folders:
            halt |= folder.version.halt
        return halt

    def _paths(self) -> list[Path]:
        return [path for folder in self._folders for path in list_groups(folder.path)]

    def _read(self, name: str) -> float | None:
        return next((value for folder in self._folders if (value := folder.read(name)) is not None), None)

    def _read_hits(self) -> Hits:
        return Hits(int(self._read("oom") or 0), int(self._read("processes") or 0))


class CpuUsage(msgspec.Struct):
    measured_at: float
    seconds: float
    is_throttled: bool = False
    quiet: int = 0


class CpuFairness:
    """Lowers the CPU weight of groups that used much of the processor since the last check.

    Such a group runs at full speed on an idle machine and slower on a busy one, so short commands run at once. With
    equal weights a short command would wait behind every turn of a busy loop.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: dict[Group, CpuUsage] = {}

    @property
    def has_groups(self) -> bool:
        """Whether the last check had any."""
        return bool(self._seen)

    def update(self, groups: Iterable[Group]) -> None:
        """Check all groups. Blocks for some reads; a group without a CPU counter is skipped."""
        now = self._now()
        held: dict[Group, CpuUsage] = {}
        for group in groups:
            used = group.cpu_seconds()
            if used is not None:
                held[group] = _update_usage(group, self._seen.get(group) or CpuUsage(now, used), now, used)
        self._seen = held


def _update_usage(group: Group, seen: CpuUsage, now: float, used: float) -> CpuUsage:
    share = (used - seen.seconds) / max(now - seen.measured_at, EVERY)
    seen.measured_at, seen.seconds = now, used
    seen.quiet = seen.quiet + 1 if share < LITTLE else 0
    if share > MUCH and not seen.is_throttled:
        seen.is_throttled = group.throttle(True)
    elif seen.is_throttled and seen.quiet >= QUIET:
        seen.is_throttled = not group.throttle(False)
    return seen
