"""Wait longer each time that a mounted server can't be reached."""

import random
import time

FIRST = 1.0  # seconds
LONGEST = 60.0
SHORT_LIFE = 10.0  # seconds from the opening to the end of a conversation that hardly worked
WELL_AFTER = 60.0  # seconds without a failure, after which the first wait is short again


class RestartDelay:
    """When the next try may be made."""

    def __init__(self) -> None:
        self._wait = 0.0
        self._not_before = 0.0
        self._failed = 0.0
        self._lived_short = -SHORT_LIFE  # when the last short life ended

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._not_before - time.monotonic())

    def note_end(self, seconds: float) -> None:
        """Take the end of a conversation that lived so long. One short life may be chance: the second one waits."""
        if seconds < SHORT_LIFE:
            is_again = time.monotonic() - self._lived_short < WELL_AFTER
            self._lived_short = time.monotonic()
            if is_again:
                self.note_failure()

    def note_failure(self) -> None:
        now = time.monotonic()
        is_well = now - self._failed > WELL_AFTER + self._wait
        self._wait = FIRST if is_well or not self._wait else min(self._wait * 2, LONGEST)
        self._failed = now
        self._not_before = now + self._wait * random.uniform(0.75, 1.0)  # noqa: S311  # no secret
