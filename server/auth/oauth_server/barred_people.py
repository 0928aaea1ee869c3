"""Find the people of earlier sign-ins who can't sign in any more, without reading all people each time."""

from collections.abc import Awaitable, Callable

import msgspec

from toolgate.server.state.rows.grants import CLOCK_SLACK

PIECE = 200  # people of a round: it takes some 3 ms


class CheckedPeople(msgspec.Struct, frozen=True):
    """The people that one transaction has checked.

    - `subjects`: their subjects; `barred`: the subjects of those who can't sign in any more
    - `place`: the subject after which the next transaction begins, "" at the end of all people
    - `time`: of the transaction, in seconds since the epoch
    """

    subjects: frozenset[str]
    barred: frozenset[str]
    place: str
    time: float


class BarredPeople:
    """The people who could not sign in at the last check.

    The first check reads all people. Later checks read those whose row has changed since, by its time, and `PIECE`
    others in turn: a server of an older version does not set the time.

    - `check(place, since)` checks `PIECE` people after a subject, and those who changed since a time
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
