"""Decide whether an engine may be queried now: a circuit breaker with back-off.

Closed: the engine is queried. FAILURES failures in a row open it. A refusal counts as that many at once, since more
queries prolong it. Concurrent failures count as one, since the server may have been slow. Open: the engine is skipped
for REST seconds, twice as long after each failed trial, up to MAX_REST. Half open: one search queries it, the others
skip it; an answer closes it. An engine's own wait holds in any state, up to MAX_WAIT.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from toolgate.tools.reading.search.outcome import EngineOutcome, Status

log = logging.getLogger(__name__)

FAILURES = 3
REST = 30.0  # seconds; a restart or a short overload is over by then
MAX_REST = 600.0
STATES = ("closed", "open", "half-open")
MAX_WAIT = 3_600.0  # seconds; a longer wait is a quota, and worth a try each hour


class EngineAttempt(NamedTuple):
    """A running query: whether it is the trial, and the failure count at its start."""

    is_trial: bool
    failures: int


class EngineHealth:
    """The state of one engine for all callers: it refuses the server, not one caller. `on_suspend` is called with the
    status, the reason and the seconds of each rest."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.tally: Counter[Status] = Counter()  # what it said, ever
        self.on_suspend: Callable[[Status, str, float], None] = lambda status, reason, wait: None
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
        """One of STATES. It is also open while the engine's own wait lasts."""
        if self._until > self._clock():
            return "open"
        return "half-open" if self.is_open else "closed"

    def skip_outcome(self) -> EngineOutcome | None:
        """Return None if the engine may be queried, else the outcome to report: its last status and the reason."""
        left = self._until - self._clock()
        if left <= 0 and not self._trying:
            return None
        when = f"next try in {left:.0f} s" if left > 0 else "another search is trying it"
        return EngineOutcome(self._name, self._last, reason=f"{self._reason}; {when}")

    def begin(self) -> EngineAttempt:
        """Start a query, which `record` or `cancel` ends."""
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
        is_news = attempt.is_trial or not was_open  # not a query from before it opened
        if outcome.is_engine_fault and self.is_open and is_news:
            wait = wait or self._rest
            self._rest = min(self._rest * 2, MAX_REST) if attempt.is_trial else self._rest
        if wait > 0:
            self._suspend(outcome, wait)

    def cancel(self, attempt: EngineAttempt) -> None:
        """End a query whose search was cancelled: nothing was learned."""
        self._trying = self._trying and not attempt.is_trial

    def adopt_rest(self, status: Status, reason: str, wait: float) -> None:
        """Skip the engine for as long as another server does. Then one search tries it."""
        self._failures = max(self._failures, FAILURES)
        self._rest_until(status, reason, min(wait, MAX_WAIT))

    def _suspend(self, outcome: EngineOutcome, wait: float) -> None:
        is_fault = outcome.status not in ("ok", "empty")
        status: Status = outcome.status if is_fault else "blocked"
        self._rest_until(status, outcome.reason if is_fault else "it asked clients to wait", wait)
        log.info("search engine %s (%s: %s): next try in %.0f s", self._name, self._last, self._reason, wait)
        self.on_suspend(self._last, self._reason, wait)

    def _rest_until(self, status: Status, reason: str, wait: float) -> None:
        self._until = max(self._until, self._clock() + wait)
        self._last, self._reason = status, reason
