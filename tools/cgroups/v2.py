"""What cgroup v2 wants written and says: one hierarchy, whose groups have either processes or limited groups.

https://docs.kernel.org/admin-guide/cgroup-v2.html and https://systemd.io/CGROUP_DELEGATION
"""

import contextlib
import errno
import os
from collections.abc import Mapping
from pathlib import Path

from toolgate.tools.cgroups.files import read_numbers, read_words, write
from toolgate.tools.cgroups.version import Allowance, CgroupVersion, Statistic

LEAF = "toolgate-server"
LEAST, MOST = 1, 10_000  # what cpu.weight takes
BUSY = "processes are in it (under systemd: Delegate=yes and DelegateSubgroup=server)"


def _memory(group: Path, allowance: Allowance) -> None:
    write(group / "memory.max", allowance.memory or "max")
    if (group / "memory.swap.max").exists():  # where swap is counted
        write(group / "memory.swap.max", 0 if allowance.memory else "max")


def _processes(group: Path, allowance: Allowance) -> None:
    write(group / "pids.max", allowance.pids)


def _weight(group: Path, allowance: Allowance) -> None:
    write(group / "cpu.weight", min(max(allowance.weight or 100, LEAST), MOST))


def _top(own: Path) -> Path:
    """One above where we, or systemd's DelegateSubgroup=, put the server in a leaf of what was delegated."""
    is_leaf = own.name == LEAF or (_is_delegated(own.parent) and not _is_delegated(own))
    return own.parent if is_leaf else own


def _prepare(top: Path, controllers: frozenset[str], move: bool) -> Mapping[str, str]:
    """Raises OSError when processes are in it; with `move`, this one moves to a leaf of it first."""
    if _has_processes(top):
        if not move:
            raise OSError(errno.EBUSY, BUSY, str(top))
        _move(top / LEAF)
        if _has_processes(top):
            _move_back(top)
            raise OSError(errno.EBUSY, "processes other than the server are in it", str(top))
    return _enable(top, controllers)


def _is_delegated(group: Path) -> bool:
    for name in ("user.delegate", "trusted.delegate"):  # systemd's marks; the second is for root's eyes
        with contextlib.suppress(OSError):
            return os.getxattr(group, name) == b"1"
    return False


def _has_processes(group: Path) -> bool:
    """The root alone may have both processes and groups; it has no type."""
    return (group / "cgroup.type").exists() and bool(read_numbers(group / "cgroup.procs"))


def _move(leaf: Path) -> None:
    leaf.mkdir(exist_ok=True)
    write(leaf / "cgroup.procs", os.getpid())


def _move_back(top: Path) -> None:
    write(top / "cgroup.procs", os.getpid())
    with contextlib.suppress(OSError):  # another server may be in it
        (top / LEAF).rmdir()


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
    limits={"memory": _memory, "pids": _processes, "cpu": _weight},
    statistics={
        "oom": Statistic("memory", "memory.events", "oom_kill"),
        "processes": Statistic("pids", "pids.events", "max"),
        "seconds": Statistic("", "cpu.stat", "usage_usec", unit=1e-6),  # told without a controller
    },
    halt={"pids.max": "0", "cgroup.kill": "1"},  # the second since Linux 5.14
    top=_top,
    prepare=_prepare,
    nest=_nest,
)
