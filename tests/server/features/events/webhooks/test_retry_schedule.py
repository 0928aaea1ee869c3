"""The arithmetic of retries, by numbers."""

import pytest

from toolgate.server.features.events.webhooks.delivery import Disposition, Outcome
from toolgate.server.features.events.webhooks.retry_schedule import RetrySchedule, parse_retry_after

FAILURE = Outcome(Disposition.RETRY, "http_5xx")
NOT_READY = Outcome(Disposition.RETRY, "http_5xx", is_soon=True)
NOW = 1_764_111_600.0  # 2025-11-25 23:00:00 UTC


def pauses(outcome: Outcome, attempts: int, random: float = 0.5) -> list[float]:
    schedule = RetrySchedule(random=lambda: random)
    return [schedule.pause(attempt, outcome) for attempt in range(1, attempts + 1)]


def test_pauses_grow_and_then_probe_for_ever() -> None:
    assert pauses(FAILURE, 8) == [1, 5, 30, 120, 600, 1800, 1800, 1800]
    assert pauses(FAILURE, 10_000)[-1] == 1800


def test_jitter_is_a_fifth_to_either_side() -> None:
    assert pauses(FAILURE, 3, 0.0) == pytest.approx([0.8, 4, 24])
    assert pauses(FAILURE, 3, 1.0) == pytest.approx([1.2, 6, 36])
    spread = {round(RetrySchedule().pause(4, FAILURE), 3) for _ in range(100)}
    assert len(spread) > 50
    assert all(96 <= pause <= 144 for pause in spread)


def test_a_receiver_that_is_not_ready_is_tried_soon_again() -> None:
    assert pauses(NOT_READY, 5) == [1, 2, 4, 8, 16]
    assert pauses(NOT_READY, 10_000)[-1] == 1800


def test_after_the_quick_attempts_a_delivery_is_probing() -> None:
    schedule = RetrySchedule()
    assert [schedule.is_probing(attempts) for attempts in range(8)] == [False] * 6 + [True] * 2


def test_a_receiver_may_ask_for_a_longer_pause_but_not_for_a_shorter() -> None:
    schedule = RetrySchedule(random=lambda: 0.5)
    assert schedule.pause(1, Outcome(Disposition.RETRY, "http_5xx", retry_after=60.0)) == pytest.approx(66)
    assert schedule.pause(4, Outcome(Disposition.RETRY, "http_5xx", retry_after=60.0)) == 120


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("", 0),
        ("0", 0),
        ("7", 7),
        (" 7 ", 7),
        ("3600", 3600),
        ("3601", 3600),
        ("1000000000", 3600),
        ("9" * 100_000, 3600),
        ("-5", 0),
        ("1.5", 0),
        ("10^9", 0),
        ("٧", 0),
        ("soon", 0),
        ("Tue, 25 Nov 2025 23:00:30 GMT", 30),
        ("Tue, 25 Nov 2025 22:00:00 GMT", 0),
        ("Tue, 25 Nov 9999 23:00:30 GMT", 3600),
        ("Tue, 25 Nov 2025 23:00:30 -0000", 30),
        ("Tue, 99 Nov 2025 23:00:30 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 -2359", 3600),
        ("Mon, 01 Jan 0001 00:00:00 +2359", 0),
    ],
)
def test_retry_after_is_bounded(value: str, seconds: float) -> None:
    assert parse_retry_after(value, NOW) == seconds
