"""Remember the recent visitor of each browser's session, for the time in which the database is away.

The page then shows the parts about this server alone. A person's parts wait until the database has named the visitor.
"""

import hashlib
import time
from collections.abc import Callable

from toolgate.transports.web.page_context import FORM_TIME, Visitor

REMEMBERED = FORM_TIME / 2  # seconds: as long as an open page goes on without a database
MAX_VISITORS = 1_000  # the one not seen for longest is forgotten


class RecentVisitors:
    """Visitors by the secrets of their sessions, of which it keeps hashes. `now` is in seconds of any clock."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: dict[bytes, tuple[float, Visitor]] = {}  # in the order of their times

    def note(self, secret: str, visitor: Visitor) -> None:
        """Note the visitor whom the database names for this secret. Forget the last one if that is a stranger."""
        key = _hash(secret)
        self._seen.pop(key, None)
        if visitor.person is None:
            return
        if len(self._seen) >= MAX_VISITORS:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = self._now(), visitor

    def find(self, secret: str) -> Visitor | None:
        """Return the recent visitor of this secret, or None."""
        seen_at, visitor = self._seen.get(_hash(secret), (float("-inf"), None))
        return visitor if self._now() - seen_at < REMEMBERED else None


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
