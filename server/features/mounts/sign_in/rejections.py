"""Tell a server that lags, or is out of order for a moment, from one that does not take the tokens given for it."""

from collections.abc import Callable

import msgspec

REJECTED_FOR = 30.0  # seconds: an outage that answers 401, or a replica that learns of a token late, is over by then
MAX_PEOPLE = 10_000


class Rejection(msgspec.Struct, frozen=True):
    """The last new token that was rejected, and since when all of them were, by the clock of the state."""

    token: str
    since: float


class Rejections:
    """The people whose new tokens one server rejects. `lasts`: seconds after which another rejection is meant."""

    def __init__(self, now: Callable[[], float], lasts: float = REJECTED_FOR, most: int = MAX_PEOPLE) -> None:
        self.lasts = lasts
        self._now = now
        self._most = most
        self._people: dict[str, Rejection] = {}

    def note(self, principal: str, token: str) -> bool:
        """Note that a new token was rejected. Return whether it is meant."""
        first = self._people.pop(principal, None)
        now = self._now()
        if len(self._people) >= self._most:
            del self._people[next(iter(self._people))]
        self._people[principal] = Rejection(token, now if first is None else first.since)
        return first is not None and now >= first.since + self.lasts

    def is_recent(self, principal: str, token: str) -> bool:
        """Return whether this token was rejected when it was new, and another one would be as well."""
        found = self._people.get(principal)
        return found is not None and found.token == token and self._now() < found.since + self.lasts

    def forget(self, principal: str) -> None:
        """A token of this person was taken, or their connection is another one."""
        self._people.pop(principal, None)
