"""Define what cgroup v1 and v2 read and write, as the tables `V1` and `V2`.

v1 has a hierarchy for each controller, and processes in any group. v2 has one hierarchy, whose groups have either
processes or limited groups: https://docs.kernel.org/admin-guide/cgroup-v2.html and
https://systemd.io/CGROUP_DELEGATION
"""

import contextlib
import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from toolgate.tools.workspace.sandbox.cgroups.files import read_numbers, read_words, write

PIDS_MOST = 4_194_303  # PID_MAX_LIMIT of 64-bit Linux less one: pids.max takes no more
SHARES = 1024  # the default of a v1 group, as 100 is of a v2 group
LEAF = "toolgate-server"
BUSY = "processes are in it (under systemd: Delegate=yes and DelegateSubgroup=server)"


class Allowance(msgspec.Struct, frozen=True):
    """The limits of a group's processes together: bytes, processes with threads, CPU weight. 0 is no limit. Weights
    count against sibling groups, which have 100 by default."""

    memory: int = 0
    processes: int = 0
    weight: int = 0


class Statistic(msgspec.Struct, frozen=True):
    """A number of a group: its file, its line, and its unit."""

    controller: str
    file: str
    key: str = ""
    unit: float = 1


class CgroupVersion(msgspec.Struct, frozen=True):
    """How one version works.

    `limits`: controller → writes its part of an allowance. `halt`: file → value that stops forks. `top` returns the
    parent for our groups, given this process's group. `prepare` lets it have groups, may move this process, and returns
    refused controllers and why. `nest` lets a server group have groups.
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
    """Kernel memory counts too. Memory with swap must never be below memory: raise it before, lower it after."""
    most = allowance.memory or -1
    with_swap = group / "memory.memsw.limit_in_bytes"
    if with_swap.exists():
        write(with_swap, -1)
    write(group / "memory.limit_in_bytes", most)
    if with_swap.exists():
        write(with_swap, most)
    elif allowance.memory:
        write(group / "memory.swappiness", 0)  # swap is not counted here, so allow none


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
    prepare=lambda top, controllers, move: {},  # any group may have groups
    nest=lambda group, controllers: None,
)


def _limit_memory_v2(group: Path, allowance: Allowance) -> None:
    write(group / "memory.max", allowance.memory or "max")
    if (group / "memory.swap.max").exists():  # where swap is counted
        write(group / "memory.swap.max", 0 if allowance.memory else "max")


def _set_weight_v2(group: Path, allowance: Allowance) -> None:
    write(group / "cpu.weight", min(max(allowance.weight or 100, 1), 10_000))  # what it takes


def _find_top(own: Path) -> Path:
    """Return the parent if the server is in a leaf made here or by systemd's DelegateSubgroup=."""
    is_leaf = own.name == LEAF or (_is_delegated(own.parent) and not _is_delegated(own))
    return own.parent if is_leaf else own


def _is_delegated(group: Path) -> bool:
    for name in ("user.delegate", "trusted.delegate"):  # systemd's marks; only root can read the second
        with contextlib.suppress(OSError):
            return os.getxattr(group, name) == b"1"
    return False


def _prepare(top: Path, controllers: frozenset[str], move: bool) -> Mapping[str, str]:
    """Enable the controllers. Raises OSError if processes are in the group; `move` moves ours to a leaf."""
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
    """Only the root, which has no type, may have both processes and groups."""
    return (group / "cgroup.type").exists() and bool(read_numbers(group / "cgroup.procs"))


def _enable(group: Path, controllers: frozenset[str]) -> dict[str, str]:
    """Enable the controllers one by one, as one failure refuses all. Return those that failed, and why."""
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
