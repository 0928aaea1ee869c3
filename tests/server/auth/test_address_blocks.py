"""Limits for strangers: by address, by the blocks around it, and in total."""

import asyncio
from collections.abc import Callable, Iterable

import pytest

from toolgate.server.auth.address_blocks import AddressLimiter, prefixes
from toolgate.server.base.bus.memory_keys import MIN_SWEEP, MemoryKeys


class Clock:
    """A clock set by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def limit(each: int, all: int, clock: Callable[[], float]) -> AddressLimiter:
    return AddressLimiter("tests", each, all, MemoryKeys(clock))


def taken(limiter: AddressLimiter, addresses: Iterable[str]) -> int:
    async def take() -> int:
        return sum([await limiter.take(address) for address in addresses])

    return asyncio.run(take())


@pytest.mark.parametrize(
    ("address", "blocks"),
    [
        ("192.0.2.7", ("192.0.2.7/32", "192.0.2.0/24")),
        ("::ffff:192.0.2.7", ("192.0.2.7/32", "192.0.2.0/24")),
        ("2001:db8:1:2ff::7", ("2001:db8:1:2ff::/64", "2001:db8:1:200::/56", "2001:db8:1::/48")),
        ("fe80::1%eth0", ("fe80::/64", "fe80::/56", "fe80::/48")),
        ("", ("",)),
        ("unix:", ("unix:",)),
    ],
)
def test_an_address_is_in_ever_wider_blocks(address: str, blocks: tuple[str, ...]) -> None:
    assert prefixes(address) == blocks


def test_new_addresses_of_one_block_are_limited_together() -> None:
    limiter = limit(10, 10_000, Clock())
    assert taken(limiter, (f"2001:db8:1:1::{host:x}" for host in range(100))) == 10  # one /64
    assert taken(limiter, (f"2001:db8:2:{net:x}::1" for net in range(200))) == 20  # one /56
    assert taken(limiter, (f"2001:db8:3:{net:x}::1" for net in range(0, 65_536, 64))) == 40  # one /48
    assert taken(limiter, (f"198.51.100.{host}" for host in range(256))) == 20  # one /24


def test_one_block_gets_a_part_and_leaves_the_rest_to_others() -> None:
    limiter = limit(1_000, 90, Clock())
    assert taken(limiter, ["192.0.2.1"] * 100) == 10  # an eighth of the 80 that it leaves
    assert taken(limiter, ["198.51.100.1"] * 100) == 9  # of 72


def test_many_blocks_together_leave_newcomers_their_turn() -> None:
    limiter = limit(60, 600, Clock())
    for _ in range(100):
        taken(limiter, (f"2001:db8:{block:x}::1" for block in range(100)))
    assert taken(limiter, (f"192.0.{block}.1" for block in range(20))) == 20


def test_all_together_have_their_limit_too() -> None:
    limiter = limit(60, 600, Clock())
    assert taken(limiter, (f"10.{block >> 8}.{block & 255}.1" for block in range(2_000))) == 600


def test_there_is_no_double_share_around_the_turn_of_a_minute() -> None:
    clock = Clock()
    limiter = limit(2, 100, clock)
    clock.now = 59.9
    assert taken(limiter, ["192.0.2.1"] * 3) == 2
    clock.now = 60.1
    assert taken(limiter, ["192.0.2.1"]) == 0
    clock.now = 121.0
    assert taken(limiter, ["192.0.2.1"] * 3) == 2


def test_of_many_strangers_few_are_remembered() -> None:
    clock = Clock()
    counters = MemoryKeys(clock)
    limiter = AddressLimiter("tests", 1, 10, counters)

    async def take() -> None:
        for number in range(5_000):
            clock.now += 1.0
            await limiter.take(f"2001:db8:{number:x}::1")

    asyncio.run(take())
    assert len(counters) <= MIN_SWEEP
