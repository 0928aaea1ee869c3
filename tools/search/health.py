"""Decide whether an engine may be queried now: a circuit breaker with back-off.

Closed: it is asked. After FAILURES failures in a row it is open (a refusal counts as so many at once: asking on makes
it last longer; questions under way together count as one: it may be us who were slow). Open: not asked for REST
seconds, twice as long after each failed try, up to MAX_REST. Then half open: one search asks it, the others don't wait
for that; an answer closes it. What the engine itself says of how long it wants to be left alone holds in any state, up
to MAX_WAIT.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from toolgate.tools.search.query import EngineOutcome, Status

log = logging.getLogger(__name__)

FAILURES = 3
REST = 30.0  # seconds; a restart or a short overload has passed by then
MAX_REST = 600.0
STATES = ("closed", "open", "half-open")
MAX_WAIT = 3_600.0  # seconds; more than an hour is a quota, and worth a try each hour


class EngineAttempt(NamedTuple):
    """A question under way: whether it is the one try, and how many failures there had been when it was put."""

    is_trial: bool
    failures: int


class EngineHealth:
    """Of one engine, for all callers: what it refuses to one it refuses to the next."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.tally: Counter[Status] = Counter()  # what it said, ever
        self._name = name
        self._clock = clock
        self._failures = 0  # in a row
        self._ever = 0
        self._rest = REST
        self._until = 0.0  # not asked before
        self._trying = False
        self._last: Status = "ok"
        self._reason = ""

    @property
    def is_open(self) -> bool:
        return self._failures >= FAILURES

    @property
    def state(self) -> str:
        """One of STATES. It is open too when it asked to be left alone."""
        if self._until > self._clock():
            return "open"
        return "half-open" if self.is_open else "closed"

    def skip_outcome(self) -> EngineOutcome | None:
        """None: it may be asked. Else why it is not: under the status it had when it last was asked, since that is what
        is known of it."""
        left = self._until - self._clock()
        if left <= 0 and not self._trying:
            return None
        when = f"next try in {left:.0f} s" if left > 0 else "another search is trying it"
        return EngineOutcome(self._name, self._last, reason=f"{self._reason}; {when}")

    def begin(self) -> EngineAttempt:
        """It is being asked: `record` or `cancel` ends that."""
        self._trying = self.is_open
        return EngineAttempt(self._trying, self._ever)

    def record(self, outcome: EngineOutcome, attempt: EngineAttempt) -> None:
        self.tally[outcome.status] += 1
        was_open = self.is_open
        self._trying = self._trying and not attempt.is_trial
        if outcome.status in ("ok", "empty"):
            self._failures, self._rest = 0, REST
            if was_open:
                log.info("search engine %s answers again", self._name)
        elif outcome.is_engine_fault and (outcome.status == "blocked" or attempt.failures == self._ever):
            self._failures = FAILURES if outcome.status == "blocked" else self._failures + 1
            self._ever += 1
        wait = min(outcome.wait, MAX_WAIT)
        is_news = attempt.is_trial or not was_open  # not what was asked before it opened
        if outcome.is_engine_fault and self.is_open and is_news:
            wait = wait or self._rest
            self._rest = min(self._rest * 2, MAX_REST) if attempt.is_trial else self._rest
        if wait > 0:
            self._suspend(outcome, wait)

    def cancel(self, attempt: EngineAttempt) -> None:
        """The search that asked was cancelled: nothing was learned."""
        self._trying = self._trying and not attempt.is_trial

    def _suspend(self, outcome: EngineOutcome, wait: float) -> None:
        self._until = max(self._until, self._clock() + wait)
        is_fault = outcome.status not in ("ok", "empty")
        self._last = outcome.status if is_fault else "blocked"
        self._reason = outcome.reason if is_fault else "it asked clients to wait"
        log.info("search engine %s (%s: %s): next try in %.0f s", self._name, self._last, self._reason, wait)
