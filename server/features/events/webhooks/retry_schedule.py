"""Compute when a delivery is tried again: quickly at first, then by slow probes as long as the subscription lives."""

import random
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime

from toolgate.server.features.events.webhooks.delivery import Outcome

PAUSES = (1.0, 5.0, 30.0, 120.0, 600.0)  # seconds after the first five failed attempts
PROBE = 1_800.0  # seconds between the attempts after those
SOON = 1.0  # seconds after the first 425 or 503: the receiver may still be storing the subscription. Then it doubles
JITTER = 0.2  # of a pause, to either side: a thousand that fail at once do not return at once
MAX_RETRY_AFTER = 3_600.0  # seconds; a receiver that asks for more is tried after these
MAX_DIGITS, MAX_DATE = 10, 64  # characters


class RetrySchedule:
    """`pauses` follow the first failed attempts, `probe` each later one. `random` returns a number from 0 to 1."""

    def __init__(
        self,
        pauses: tuple[float, ...] = PAUSES,
        probe: float = PROBE,
        soon: float = SOON,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._pauses = pauses
        self._probe = probe
        self._soon = soon
        self._random = random

    def pause(self, attempts: int, outcome: Outcome) -> float:
        """Return the seconds until the next attempt, after `attempts` have failed, the last with `outcome`."""
        pause = self._pause_when_soon(attempts) if outcome.is_soon else self._pause(attempts)
        jitter = JITTER * self._random()
        return max(pause * (1 - JITTER + 2 * jitter), outcome.retry_after * (1 + jitter))

    def is_probing(self, attempts: int) -> bool:
        """Return whether the quick attempts are over: the delivery counts as suspended."""
        return attempts > len(self._pauses)

    def _pause(self, attempts: int) -> float:
        return self._probe if self.is_probing(attempts) else self._pauses[attempts - 1]

    def _pause_when_soon(self, attempts: int) -> float:
        return min(self._soon * 2.0 ** min(attempts - 1, 32), self._probe)


def parse_retry_after(value: str, now: float) -> float:
    """Return the seconds of a `Retry-After` header, at most `MAX_RETRY_AFTER`; 0 if it has no meaning."""
    text = value.strip()
    if text.isascii() and text.isdecimal():
        return min(float(text), MAX_RETRY_AFTER) if len(text) <= MAX_DIGITS else MAX_RETRY_AFTER
    if len(text) > MAX_DATE:
        return 0.0
    try:
        date = parsedate_to_datetime(text)
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)
