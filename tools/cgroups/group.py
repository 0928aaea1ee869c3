"""Hold a group of processes within limits, in each hierarchy that has a controller for one."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from toolgate.tools.cgroups import kill
from toolgate.tools.cgroups.files import list_groups, read_number
from toolgate.tools.cgroups.versions import Allowance, CgroupVersion

WEIGHT = 100  # what a group has by default
MODEST = 10  # the part of it that who gives way keeps
WITHIN = 5.0  # seconds for all to die: SIGKILL takes milliseconds, but a process can be stuck in the kernel


@dataclass(frozen=True, slots=True)
class GroupFolder:
    """The group's folder in one hierarchy, and what is limited there."""

    path: Path
    controllers: frozenset[str]
    version: CgroupVersion

    def limit(self, allowance: Allowance) -> None:
        for controller in self.controllers & self.version.limits.keys():
            self.version.limits[controller](self.path, allowance)

    def read(self, name: str) -> float | None:
        """None when another hierarchy knows, or none."""
        reading = self.version.statistics[name]
        if reading.controller not in {"", *self.controllers}:
            return None
        return read_number(self.path / reading.file, reading.key) * reading.unit


@dataclass(frozen=True, slots=True)
class Hits:
    """How often, since the last look: processes killed for want of memory, and forks refused."""

    oom: int = 0
    processes: int = 0


class Group:
    """Processes that are held to an allowance together. Any thread may call.

    `procs_files`: the files into which a process writes `0`, one after the other, to be in it with all that it starts
    later. It must do so before it is anything else's, and start nothing when one can't be written. The first takes
    the kernel some 10 ms; what a process that is in it already starts is in it for nothing.
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
        """Since this was last asked."""
        with self._lock:
            before, self._seen = self._seen, self._read_hits()
            return Hits(self._seen.oom - before.oom, self._seen.processes - before.processes)

    def cpu_seconds(self) -> float | None:
        """Of all that were in it so far; None where no controller counts it."""
        return self._read("seconds")

    def throttle(self, enabled: bool) -> bool:
        """Have a tenth of its weight for the processor, or all of it. False where that can't be had."""
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
        """SIGKILL all that is in it; nothing is born meanwhile. Waits `within` seconds; is it empty? Raises OSError."""
        try:
            return kill.kill(self._paths, self._halt, time.monotonic() + within)
        finally:
            for folder in self._folders:
                folder.limit(self._allowance)

    def close(self, within: float = WITHIN) -> bool:
        """Kill, and remove it. Waits `within` seconds; False when something in it can't be ended. Raises OSError."""
        until = time.monotonic() + within
        kill.kill(self._paths, self._halt, until)  # in all hierarchies first: one may hold what another halts
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
