"""Nonces: each is valid once, at two replicas on each kind of bus."""

import asyncio
from collections.abc import Callable

import pytest

from tests.server.features.replicas.bus.conftest import shared_redis as shared_redis
from tests.server.features.replicas.bus.pairs import run_pair as run_pair
from toolgate.server.base.bus.bus import Bus
from toolgate.server.base.bus.memory_keys import MemoryKeys
from toolgate.server.calls.policy.nonces import Nonces
from toolgate.server.state.keys.sealed_state import LIFETIME

Run = Callable[..., None]


def test_a_nonce_is_its_owners_and_valid_once_at_all_replicas(run_pair: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        here, there = Nonces(one.keys), Nonces(two.keys)
        nonce = await here.issue("ada")
        for wrong in ("", ".", "x.y", f"9{nonce}", f"{nonce}x", nonce.partition(".")[0]):
            assert not await there.redeem("ada", wrong)
        assert not await there.redeem("bob", nonce)
        assert await there.redeem("ada", nonce)
        assert not await there.redeem("ada", nonce) and not await here.redeem("ada", nonce)

    run_pair(check)


@pytest.mark.parametrize("times", [20, pytest.param(200, marks=pytest.mark.soak)])
def test_of_two_replicas_one_redeems_it(run_pair: Run, times: int) -> None:
    async def check(one: Bus, two: Bus) -> None:
        for _ in range(times):
            nonce = await Nonces(one.keys).issue("ada")
            redeemed = await asyncio.gather(*(Nonces(bus.keys).redeem("ada", nonce) for bus in (one, two, one)))
            assert sorted(redeemed) == [False, False, True]

    run_pair(check)


def test_a_nonce_ends_in_time() -> None:
    async def check() -> None:
        clock = [0.0]
        nonces = Nonces(MemoryKeys(lambda: clock[0]))
        nonce = await nonces.issue("ada")
        clock[0] = LIFETIME
        assert not await nonces.redeem("ada", nonce)

    asyncio.run(check())


def test_nonces_are_bounded_for_each_principal(run_pair: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        nonces, others = Nonces(one.keys, most=3), Nonces(two.keys, most=3)
        first = await nonces.issue("ada")
        flood = [await (nonces, others)[number % 2].issue("eve") for number in range(100)]
        assert [await nonces.redeem("eve", nonce) for nonce in flood[-4:]] == [False, True, True, True]
        assert await others.redeem("ada", first)

    run_pair(check)
