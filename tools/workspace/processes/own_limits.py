"""Read what another process of the same user may change of this one, and what the next command inherits: resource
limits, priority, processors, scheduler and the score for a lack of memory.

Standard library only: the supervisor, a program of its own, loads this. The I/O priority is left out: where it was not
set it follows the priority, and reading it takes a call that Python lacks.
"""

import os
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Limits = dict[int, tuple[int, int]]  # the soft and the hard one of each resource, by its number
    OwnLimits = tuple[Limits, tuple[object, ...]]  # and all else

NUMBERS = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})


def read_own_limits() -> "OwnLimits":
    """Return what is to be compared."""
    limits = {number: resource.getrlimit(number) for number in NUMBERS}
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return limits, (priority,)
    return limits, (priority, os.sched_getaffinity(0), os.sched_getscheduler(0), _read_oom_score())


def _read_oom_score() -> bytes:
    try:
        descriptor = os.open("/proc/self/oom_score_adj", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 16)
    finally:
        os.close(descriptor)
