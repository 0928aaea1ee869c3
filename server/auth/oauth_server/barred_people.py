"""Find the people who have been here and could not sign in any more, without reading everybody each time."""

from collections.abc import Awaitable, Callable

import msgspec

from toolgate.server.state.rows.grants import CLOCK_SLACK

PIECE = 200  # people of a round: it takes some 3 ms


class CheckedPeople(msgspec.Struct, frozen=True):
    """The people that one transaction has checked.

    - `subjects`: theirs; `barred`: those of them that could not sign in
    - `place`: the subject to go on after, "" at the end of all people
    - `time`: when it was, in seconds since the epoch
    """

    subjects: frozenset[str]
    barred: frozenset[str]
    place: str
    time: float


class BarredPeople:
    """The people who could not sign in when they were checked last.

    The first time all are checked. Later it is those that have changed, by the time in their row, and `PIECE` others in
    turn: a server of an older version notes no change.

    - `check(place, since)` checks `PIECE` people after a subject, and those that have changed since a time
    """

    def __init__(self, check: Callable[[str, float], Awaitable[CheckedPeople]]) -> None:
        self._check = check
        self._subjects = frozenset[str]()
        self._place = ""
        self._since = float("inf")
        self._has_checked_all = False

    async def find(self) -> frozenset[str]:
        """Check, and return the subjects of all who are barred. Raises StateError."""
        while True:
            checked = await self._check(self._place, self._since)
            self._subjects = (self._subjects - checked.subjects) | checked.barred
            self._place, self._since = checked.place, checked.time - CLOCK_SLACK
            self._has_checked_all = self._has_checked_all or not self._place
            if self._has_checked_all:
                return self._subjects
