"""Which tries the throttle counts, and which it takes back."""

import pytest

from toolgate.server.auth.login.throttle import Backoff, Throttle, ThrottledError


def taken(throttle: Throttle, pace: Backoff) -> int:
    """Return how many tries in a row are allowed before a wait."""
    count = 0
    try:
        while count < 100:
            throttle.take([("a", pace)])
            count += 1
    except ThrottledError:
        pass
    return count


def test_all_tries_are_forgotten_or_some_given_back() -> None:
    throttle, pace = Throttle(lambda: 0.0), Backoff(free=3, longest=8)
    assert taken(throttle, pace) == 3
    throttle.refund(2, "a", "b")
    assert (throttle.tries("a"), throttle.tries("b"), taken(throttle, pace)) == (1, 0, 2)
    throttle.forget("a", "b")
    assert taken(throttle, pace) == 3


def test_no_try_is_given_back_in_advance() -> None:
    throttle, pace = Throttle(lambda: 0.0), Backoff(free=2, longest=8)
    throttle.refund(1, "a")
    throttle.take([("a", pace)])
    throttle.refund(5, "a")
    assert taken(throttle, pace) == 2


def test_a_key_is_free_again_after_its_wait_and_no_sooner() -> None:
    now = 0.0
    throttle, pace = Throttle(lambda: now), Backoff(free=1, longest=8, forget=100)
    for _ in range(10):  # the tenth waits eight seconds for the next
        assert taken(throttle, pace) == 1
        now += 8
    now += 92
    assert taken(throttle, pace) == 1
    now += 1
    with pytest.raises(ThrottledError) as found:
        throttle.take([("a", pace)])
    assert found.value.wait == 7
    now += 99.5
    assert taken(throttle, pace) == 1
    now += 1.5  # one second was enough: all was forgotten
    assert taken(throttle, pace) == 1
