"""Lower the CPU weight of groups that recently used much of the processor.

Such a group keeps a tenth of its weight. It runs at full speed on an idle machine and slower on a busy one, so short
commands run at once. With equal weights a short command would wait behind every turn of a busy loop.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from toolgate.tools.cgroups.group import Group

EVERY = 0.5  # seconds between two looks
MUCH = 0.9  # of one processor since the last check: a loop, not a series of short commands
LITTLE = 0.25
QUIET = 6  # quiet checks in a row before a group gets its weight back


@dataclass(slots=True)
class CpuUsage:
    measured_at: float
    seconds: float
    is_throttled: bool = False
    quiet: int = 0


class CpuFairness:
    """Throttle busy groups, by their CPU time since the last check."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: dict[Group, CpuUsage] = {}

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
