"""Measure the free memory and disk space of this machine."""

import os
from collections.abc import Iterable
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
OWN_CGROUP = Path("/proc/self/cgroup")
CGROUP_ROOT = Path("/sys/fs/cgroup")
MOST = 2**60  # bytes: file systems on object stores report all that fits a number


def measure_free_memory() -> int | None:
    """Return the free bytes of the machine, or of this process's control group if it has less. None if unknown."""
    return min((each for each in (_available_on_machine(), _available_in_cgroup()) if each is not None), default=None)


def measure_free_disk(folders: Iterable[Path]) -> int | None:
    """Return the free bytes of the fullest disk that has one of the folders. None if unknown."""
    free: list[int] = []
    for folder in folders:
        try:
            space = os.statvfs(folder)
        except OSError:
            continue
        free.append(min(space.f_bavail * space.f_frsize, MOST))
    return min(free, default=None)


def _available_on_machine() -> int | None:
    for line in _read_text(MEMINFO).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _available_in_cgroup() -> int | None:
    """Return the free memory of our control group, of either version, or None without a limit."""
    own = {kind: path for _, kind, path in (row.split(":", 2) for row in _read_text(OWN_CGROUP).splitlines() if row)}
    v2, v1 = own.get("", "").lstrip("/"), own.get("memory", "").lstrip("/")
    for most, used in (
        (CGROUP_ROOT / v2 / "memory.max", CGROUP_ROOT / v2 / "memory.current"),
        (CGROUP_ROOT / "memory" / v1 / "memory.limit_in_bytes", CGROUP_ROOT / "memory" / v1 / "memory.usage_in_bytes"),
    ):
        limit, taken = _read_text(most).strip(), _read_text(used).strip()
        if limit.isdigit() and taken.isdigit() and int(limit) < 2**60:
            return max(0, int(limit) - int(taken))
    return None


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
