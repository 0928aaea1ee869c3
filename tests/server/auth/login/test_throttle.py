"""Which tries the throttle counts, and which it takes back."""

import asyncio

import pytest

from toolgate.server.auth.login.throttle import Backoff, Throttle, ThrottledError
from toolgate.server.base.bus.memory_keys import MemoryKeys


async def count(throttle: Throttle, pace: Backoff) -> int:
    """Return how many tries in a row are allowed before a wait."""
    for number in range(100):
        try:
            await throttle.take((("a", pace),))
        except ThrottledError:
            return number
    return 100


def test_all_tries_are_forgotten_or_some_given_back() -> None:
    async def check() -> None:
        throttle, pace = Throttle(MemoryKeys(lambda: 0.0)), Backoff(free=3, longest=8)
        assert await count(throttle, pace) == 3
        await throttle.refund(2, (("a", pace), ("b", pace)))
        assert await count(throttle, pace) == 2
        await throttle.forget("a", "b")
        assert await count(throttle, pace) == 3

    asyncio.run(check())


def test_no_try_is_given_back_in_advance() -> None:
    async def check() -> None:
        throttle, pace = Throttle(MemoryKeys(lambda: 0.0)), Backoff(free=2, longest=8)
        await throttle.refund(1, (("a", pace),))
        await throttle.take((("a", pace),))
        await throttle.refund(5, (("a", pace),))
        assert await count(throttle, pace) == 2

    asyncio.run(check())


def test_a_key_is_free_again_after_its_wait_and_no_sooner() -> None:
    async def check() -> None:
        now = 0.0
        throttle, pace = Throttle(MemoryKeys(lambda: now)), Backoff(free=1, longest=8, forget=100)
        for _ in range(10):  # the tenth waits eight seconds for the next
            assert await count(throttle, pace) == 1
            now += 8
        now += 91
        assert await count(throttle, pace) == 1
        now += 1
        with pytest.raises(ThrottledError) as found:
            await throttle.take((("a", pace),))
        assert found.value.wait == 7
        now += 98.5
        assert await count(throttle, pace) == 1
        now += 100.5  # all was forgotten
        assert await count(throttle, pace) == 1
        now += 1.5  # one second was enough
        assert await count(throttle, pace) == 1

    asyncio.run(check())
