"""Lower the CPU weight of groups that have used much of the processor lately.

Such a group keeps a tenth of its weight: it runs at full speed on an idle machine and slower on a busy one, so that
short commands are served at once. Throttled groups share fairly. With equal weights a short command would wait behind
every turn of a busy loop.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from toolgate.tools.cgroups.group import Group

EVERY = 0.5  # seconds between two looks
MUCH = 0.9  # of one processor, since the last look: a loop, not one short command after the other
LITTLE = 0.25
QUIET = 6  # looks in a row that find little, until a group need not give way any more


@dataclass(slots=True)
class CpuUsage:
    measured_at: float
    seconds: float
    is_throttled: bool = False
    quiet: int = 0


class CpuFairness:
    """What was seen of each group at the last look."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: dict[Group, CpuUsage] = {}

    def update(self, groups: Iterable[Group]) -> None:
        """Look at all groups there are. Blocks for some reads; one that no controller counts is left alone."""
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
