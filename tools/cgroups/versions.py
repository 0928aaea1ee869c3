"""What cgroup v1 and v2 want written, and what they say: the table `V1` or `V2`.

v1 has a hierarchy for each controller, and processes in any group. v2 has one hierarchy, whose groups have either
processes or limited groups: https://docs.kernel.org/admin-guide/cgroup-v2.html and
https://systemd.io/CGROUP_DELEGATION
"""

import contextlib
import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolgate.tools.cgroups.files import read_numbers, read_words, write

PIDS_MOST = 4_194_303  # PID_MAX_LIMIT of 64-bit Linux less one: pids.max takes no more
SHARES = 1024  # what a group of v1 has by default, as one of v2 has 100
LEAF = "toolgate-server"
BUSY = "processes are in it (under systemd: Delegate=yes and DelegateSubgroup=server)"


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the processes of a group may use together: bytes, processes with threads, CPU weight. 0 is no limit.

    Weights count against the groups beside it, which have 100 by default.
    """

    memory: int = 0
    processes: int = 0
    weight: int = 0


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


def _limit_processes(group: Path, allowance: Allowance) -> None:
    write(group / "pids.max", allowance.processes if 0 < allowance.processes <= PIDS_MOST else "max")


def _limit_memory_v1(group: Path, allowance: Allowance) -> None:
    """Kernel memory counts too. Memory with swap is never less than memory: so it goes up before, and down after."""
    most = allowance.memory or -1
    with_swap = group / "memory.memsw.limit_in_bytes"
    if with_swap.exists():
        write(with_swap, -1)
    write(group / "memory.limit_in_bytes", most)
    if with_swap.exists():
        write(with_swap, most)
    elif allowance.memory:
        write(group / "memory.swappiness", 0)  # swap is not counted here: then let there be none


def _set_weight_v1(group: Path, allowance: Allowance) -> None:
    write(group / "cpu.shares", min(max((allowance.weight or 100) * SHARES // 100, 2), 262_144))  # what it takes


V1 = CgroupVersion(
    name="v1",
    limits={"memory": _limit_memory_v1, "pids": _limit_processes, "cpu": _set_weight_v1},
    statistics={
        "oom": Statistic("memory", "memory.oom_control", "oom_kill"),  # failcnt counts cached files too
        "processes": Statistic("pids", "pids.events", "max"),
        "seconds": Statistic("cpuacct", "cpuacct.usage", unit=1e-9),
    },
    halt={"pids.max": "0"},
    top=lambda own: own,
    prepare=lambda top, controllers, move: {},  # any group has groups, unasked
    nest=lambda group, controllers: None,
)


def _limit_memory_v2(group: Path, allowance: Allowance) -> None:
    write(group / "memory.max", allowance.memory or "max")
    if (group / "memory.swap.max").exists():  # where swap is counted
        write(group / "memory.swap.max", 0 if allowance.memory else "max")


def _set_weight_v2(group: Path, allowance: Allowance) -> None:
    write(group / "cpu.weight", min(max(allowance.weight or 100, 1), 10_000))  # what it takes


def _find_top(own: Path) -> Path:
    """One above where we, or systemd's DelegateSubgroup=, put the server in a leaf of what was delegated."""
    is_leaf = own.name == LEAF or (_is_delegated(own.parent) and not _is_delegated(own))
    return own.parent if is_leaf else own


def _is_delegated(group: Path) -> bool:
    for name in ("user.delegate", "trusted.delegate"):  # systemd's marks; the second is for root's eyes
        with contextlib.suppress(OSError):
            return os.getxattr(group, name) == b"1"
    return False


def _prepare(top: Path, controllers: frozenset[str], move: bool) -> Mapping[str, str]:
    """Raises OSError when processes are in it; with `move`, this one moves to a leaf of it first."""
    if _has_processes(top):
        if not move:
            raise OSError(errno.EBUSY, BUSY, str(top))
        leaf = top / LEAF
        leaf.mkdir(exist_ok=True)
        write(leaf / "cgroup.procs", os.getpid())
        if _has_processes(top):
            write(top / "cgroup.procs", os.getpid())
            with contextlib.suppress(OSError):  # another server may be in it
                leaf.rmdir()
            raise OSError(errno.EBUSY, "processes other than the server are in it", str(top))
    return _enable(top, controllers)


def _has_processes(group: Path) -> bool:
    """The root alone may have both processes and groups; it has no type."""
    return (group / "cgroup.type").exists() and bool(read_numbers(group / "cgroup.procs"))


def _enable(group: Path, controllers: frozenset[str]) -> dict[str, str]:
    """One by one, as one that can't be had refuses all; those that can't, and why."""
    lacking: dict[str, str] = {}
    for controller in sorted(controllers - read_words(group / "cgroup.subtree_control")):
        try:
            write(group / "cgroup.subtree_control", f"+{controller}")
        except OSError as error:
            lacking[controller] = f"{error.filename}: {error.strerror}"
    return lacking


def _nest(group: Path, controllers: frozenset[str]) -> None:
    for controller in sorted(controllers):
        write(group / "cgroup.subtree_control", f"+{controller}")


V2 = CgroupVersion(
    name="v2",
    limits={"memory": _limit_memory_v2, "pids": _limit_processes, "cpu": _set_weight_v2},
    statistics={
        "oom": Statistic("memory", "memory.events", "oom_kill"),
        "processes": Statistic("pids", "pids.events", "max"),
        "seconds": Statistic("", "cpu.stat", "usage_usec", unit=1e-6),  # v2 counts it without a controller
    },
    halt={"pids.max": "0", "cgroup.kill": "1"},  # the second since Linux 5.14
    top=_find_top,
    prepare=_prepare,
    nest=_nest,
)
