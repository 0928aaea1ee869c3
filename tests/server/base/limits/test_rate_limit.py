"""Limits on calls a minute: the window, shared limits, and refusals as a client sees them."""

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.clients.raw_client import Server
from tests.server.auth.minted_tokens import asked, signed_site
from toolgate.server.base.limits.rate_limit import SPAN, CallRateLimiter, MemoryCallCounts, SlidingWindow
from toolgate.tools.workspace import limits


def test_no_minute_has_more_than_the_limit_wherever_it_begins() -> None:
    dice, minute, now, taken = random.Random(7), SlidingWindow(), 1_000.0, []
    for _ in range(20_000):
        now += dice.choice((0.0, 0.003, 0.9, 7.3))
        if not minute.wait(now, 20):
            minute.add(now)
            taken.append(now)
    assert len(taken) > 1_000
    assert all(later - first >= SPAN for first, later in zip(taken, taken[20:], strict=False))


def test_a_wait_that_was_told_is_long_enough_and_two_seconds_too_long_at_most() -> None:
    dice, minute, now = random.Random(8), SlidingWindow(), 1_000.0
    for _ in range(2_000):
        while not (wait := minute.wait(now, 5)):
            minute.add(now)
            now += dice.uniform(0, 9)
        assert minute.wait(now + wait - 2, 5) > 0
        now += wait
        assert minute.wait(now, 5) == 0


def test_however_much_happens_a_minute_is_a_few_numbers() -> None:
    minute = SlidingWindow()
    for step in range(100_000):
        minute.add(1_000 + step / 100)
    assert len(minute._seconds) <= 1_001  # one a second
    minute.wait(2_000, 1)
    assert len(minute._seconds) <= SPAN + 1


def test_a_clock_that_is_set_back_delays_no_call() -> None:
    minute = SlidingWindow()
    minute.add(5_000)
    assert minute.wait(5_000, 1) == SPAN
    assert minute.wait(1_000, 1) == 0


class Limited:
    """A limiter, asked from outside of a loop. `now` is the time of its clock."""

    def __init__(self, most: Mapping[str, int]) -> None:
        self.now = 1_000.0
        self.counts = MemoryCallCounts(lambda: self.now)
        self._limiter = CallRateLimiter(most, self.counts)

    def admit(self, principal: str, scope: str = "") -> str | None:
        return asyncio.run(self._limiter.admit(principal, scope))


def test_a_refused_call_is_not_counted_and_the_wait_comes_to_an_end() -> None:
    calls = Limited({"": 3})
    assert [calls.admit("ada") for _ in range(3)] == [None] * 3
    for _ in range(50):
        assert calls.admit("ada") == "3 calls in a minute are allowed; try again in 60 s"
    calls.now += 60
    assert [calls.admit("ada") for _ in range(3)] == [None] * 3


def test_a_scopes_calls_count_among_all_but_not_the_other_way() -> None:
    calls = Limited({"": 4, "tools:shell": 2})
    assert [calls.admit("ada", "tools:shell") for _ in range(2)] == [None] * 2
    assert "2 calls of tools:shell in a minute" in str(calls.admit("ada", "tools:shell"))
    assert [calls.admit("ada", "tools:web") for _ in range(2)] == [None] * 2  # the refused one took no room
    assert "4 calls in a minute" in str(calls.admit("ada", "tools:web"))
    assert calls.admit("bob", "tools:shell") is None


def test_no_limit_is_none() -> None:
    calls = Limited(limits.parse(["calls=0", "calls:tools:shell=0"]).calls)
    assert {calls.admit("ada", "tools:shell") for _ in range(500)} == {None}
    assert len(calls.counts) == 0


def test_a_caller_without_a_call_for_a_minute_is_forgotten() -> None:
    calls = Limited({"": 3, "x": 2})
    for number in range(100):
        calls.admit(f"u-{number}", "x")
    assert len(calls.counts) == 200
    calls.now += SPAN + 2
    calls.admit("ada")
    assert len(calls.counts) == 1


def test_of_two_limits_that_are_hit_the_longer_wait_is_told() -> None:
    calls = Limited({"": 2, "x": 1})
    calls.admit("ada", "y")
    calls.now += 30
    calls.admit("ada", "x")
    assert calls.admit("ada", "y") == "2 calls in a minute are allowed; try again in 30 s"
    assert calls.admit("ada", "x") == "1 calls of x in a minute are allowed; try again in 60 s"


def test_one_call_too_many_is_a_tools_refusal_and_affects_no_other_principal(tmp_path: Path) -> None:
    options = ("--limit", "calls:tools:shell=2", "--limit", "calls=5")
    with signed_site(tmp_path, *options, workspace=False) as signed:
        ada, again, bob = signed.token("ada", "one"), signed.token("ada", "two"), signed.token("bob", "one")

        def bash(token: str) -> dict[str, Any]:
            params = {"name": "Bash", "arguments": {"command": "echo ran"}}
            response, _, said = asked(signed, token, "tools/call", params)
            assert response.status == 200
            result: dict[str, Any] = said["result"]
            return result

        assert not bash(ada)["isError"] and not bash(again)["isError"]
        for token in (ada, again, ada):  # a person's limit, whatever the client
            refused = bash(token)
            assert refused["isError"] is True and "structuredContent" not in refused
            assert refused["content"][0]["text"].startswith(
                "2 calls of tools:shell in a minute are allowed; try again in "
            )
        assert not bash(bob)["isError"]
        for uri in ("callback://inbox",) * 3:  # three more of anything, since the refused ones are not counted
            assert "result" in asked(signed, ada, "resources/read", {"uri": uri})[2]
        error = asked(signed, ada, "resources/read", {"uri": "callback://inbox"})[2]["error"]
        assert error["code"] == -32600 and "5 calls in a minute are allowed; try again in" in error["message"]
        said = asked(signed, ada, "tools/call", {"name": "echo", "arguments": {"text": "x"}})[2]["result"]
        assert said["isError"] is True and "5 calls in a minute" in said["content"][0]["text"]
        assert "result" in asked(signed, ada, "tools/list")[2]  # to look around is no call


def test_over_stdio_nothing_is_counted_unless_it_was_said(start: Callable[..., Server]) -> None:
    server = start()
    for _ in range(620):
        assert not server.call("ListBgTasks")["isError"]


def test_over_stdio_what_was_said_holds(start: Callable[..., Server]) -> None:
    server = start("--limit", "calls:tools:read=2")
    assert [server.call("ListBgTasks")["isError"] for _ in range(3)] == [False, False, True]
    assert not server.call("Bash", {"command": "true"})["isError"]
