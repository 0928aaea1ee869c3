"""Approvals for a session at two replicas, on each kind of bus."""

import asyncio
from collections.abc import Callable

from tests.server.features.replicas.bus.conftest import shared_redis as shared_redis
from tests.server.features.replicas.bus.pairs import run_pair as run_pair
from toolgate.server.base.bus.bus import Bus
from toolgate.server.calls.policy.session_approvals import MAX_IN_SESSIONS, SESSION_LIFETIME, SessionApprovals
from toolgate.server.protocol.session import ApprovalRequest

Run = Callable[..., None]


def request(key: str, session: str = "one") -> ApprovalRequest:
    return ApprovalRequest("Bash", "", "", "", "Bash", key, session)


def test_what_is_approved_at_one_is_known_at_the_other(run_pair: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        here, there = SessionApprovals(one.keys), SessionApprovals(two.keys)
        await asyncio.gather(*((here, there)[n % 2].add("ada", request(str(n)), 0.0) for n in range(8)))
        for number in range(8):
            assert await there.has("ada", request(str(number)), SESSION_LIFETIME - 1)
        assert not await there.has("ada", request("1"), SESSION_LIFETIME)
        assert not await there.has("ada", request("1", "another"), 0.0)
        assert not await there.has("bob", request("1"), 0.0)
        await there.end_all("ada")
        assert not await here.has("ada", request("1"), 0.0)

    run_pair(check)


def test_one_too_many_drops_the_oldest(run_pair: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        here, there = SessionApprovals(one.keys), SessionApprovals(two.keys)
        for number in range(MAX_IN_SESSIONS + 1):
            await here.add("ada", request(str(number)), 0.0)
        known = [await there.has("ada", request(str(number)), 0.0) for number in (0, 1, MAX_IN_SESSIONS)]
        assert known == [False, True, True]

    run_pair(check)
