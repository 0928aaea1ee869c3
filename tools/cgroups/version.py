"""The shape of the tables in v1.py and v2.py: how a cgroup version names its limits and statistics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

PIDS_MOST = 4_194_303  # PID_MAX_LIMIT of 64-bit Linux less one: pids.max takes no more


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the processes of a group may use together: bytes, processes with threads, CPU weight. 0 is no limit.

    Weights count against the groups beside it, which have 100 by default.
    """

    memory: int = 0
    processes: int = 0
    weight: int = 0

    @property
    def pids(self) -> str:
        """As pids.max takes it."""
        return str(self.processes) if 0 < self.processes <= PIDS_MOST else "max"


@dataclass(frozen=True, slots=True)
class Statistic:
    """A number of a group: in which file, on which line, and how much one of it is."""

    controller: str
    file: str
    key: str = ""
    unit: float = 1


@dataclass(frozen=True, slots=True)
class CgroupVersion:
    """`limits`: controller → writes its part of an allowance. `halt`: what to write where there is such a file, so that
    nothing more is born. `top`: the group that ours go below, when this process is in that one. `prepare`: makes it fit
    to have them, with leave to move this process, and returns what it refuses and why. `nest`: lets a
    server group have groups.
    """

    name: str
    limits: Mapping[str, Callable[[Path, Allowance], None]]
    statistics: Mapping[str, Statistic]
    halt: Mapping[str, str]
    top: Callable[[Path], Path]
    prepare: Callable[[Path, frozenset[str], bool], Mapping[str, str]]
    nest: Callable[[Path, frozenset[str]], None]
