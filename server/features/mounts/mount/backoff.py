"""Wait longer each time that a mounted server can't be reached."""

import random
import time

FIRST = 1.0  # seconds
LONGEST = 60.0
WELL_AFTER = 60.0  # seconds without a failure, after which the first wait is short again


class RestartDelay:
    """When the next try may be made."""

    def __init__(self) -> None:
        self._wait = 0.0
        self._not_before = 0.0
        self._failed = 0.0

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._not_before - time.monotonic())

    def note_failure(self) -> None:
        now = time.monotonic()
        is_well = now - self._failed > WELL_AFTER + self._wait
        self._wait = FIRST if is_well or not self._wait else min(self._wait * 2, LONGEST)
        self._failed = now
        self._not_before = now + self._wait * random.uniform(0.75, 1.0)  # noqa: S311  # no secret
