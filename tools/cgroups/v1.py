"""The files of cgroup v1: a hierarchy for each controller, and processes in any group."""

from collections.abc import Mapping
from pathlib import Path

from toolgate.tools.cgroups.files import write
from toolgate.tools.cgroups.version import Allowance, CgroupVersion, Statistic

SHARES = 1024  # what a group has by default, as v2 has 100
FEWEST, MOST = 2, 262_144  # what cpu.shares takes


def _memory(group: Path, allowance: Allowance) -> None:
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


def _processes(group: Path, allowance: Allowance) -> None:
    write(group / "pids.max", allowance.pids)


def _weight(group: Path, allowance: Allowance) -> None:
    write(group / "cpu.shares", min(max((allowance.weight or 100) * SHARES // 100, FEWEST), MOST))


def _top(own: Path) -> Path:
    return own


def _prepare(top: Path, controllers: frozenset[str], move: bool) -> Mapping[str, str]:
    """Any group has groups, unasked."""
    return {}


def _nest(group: Path, controllers: frozenset[str]) -> None:
    """Likewise."""


V1 = CgroupVersion(
    name="v1",
    limits={"memory": _memory, "pids": _processes, "cpu": _weight},
    statistics={
        "oom": Statistic("memory", "memory.oom_control", "oom_kill"),  # failcnt counts cached files too
        "processes": Statistic("pids", "pids.events", "max"),
        "seconds": Statistic("cpuacct", "cpuacct.usage", unit=1e-9),
    },
    halt={"pids.max": "0"},
    top=_top,
    prepare=_prepare,
    nest=_nest,
)
