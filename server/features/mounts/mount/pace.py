"""Gather changes of lists: for a moment, and for longer where they keep changing."""

import math

SHORT = 0.25  # seconds in which further changes are awaited
LONG = 2.0  # the same for a mounted server whose lists keep changing
QUICK = 10  # changes, each within LONG of the one before, that are still gathered for a moment only


class ChangePace:
    """How long to gather the changes of one mounted server."""

    def __init__(self) -> None:
        self._last = -math.inf
        self._number = 0

    def note(self, now: float) -> float:
        """Take a change at `now`, and return the seconds in which further ones are awaited. Each conversation tells of
        the same change: they count as one."""
        if now > self._last + SHORT:
            self._number = self._number + 1 if now < self._last + LONG else 1
            self._last = now
        return LONG if self._number > QUICK else SHORT
