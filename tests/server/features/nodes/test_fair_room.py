"""Room is shared between principals: one alone gets half, and there is always some for the next one."""

import asyncio

import pytest

from toolgate.server.features.nodes.fair_room import FairRoom


def fill(room: FairRoom, owner: str, size: int) -> int:
    """Take pieces of that size while they fit. Return how many did."""
    count = 0
    while room.fits(owner, size):
        room.take(owner, size)
        count += 1
    return count


def test_an_owner_that_takes_what_it_can_leaves_room_for_the_others() -> None:
    room = FairRoom(64)
    assert [fill(room, owner, 1) for owner in ("ada", "bob", "eve")] == [32, 16, 8]
    assert fill(room, "ada", 1) == 0


def test_an_owner_that_holds_nothing_may_take_more_than_its_share_but_not_more_than_there_is() -> None:
    room = FairRoom(64)
    assert room.fits("ada", 64) and not room.fits("ada", 65)
    room.take("ada", 40)
    assert not room.fits("ada", 1)
    assert room.fits("bob", 24)


def test_what_waits_comes_in_order_and_one_owners_queue_does_not_stop_anothers() -> None:
    async def body() -> None:
        room, order = FairRoom(64), list[str]()

        async def get(owner: str, size: int) -> None:
            await room.acquire(owner, size)
            order.append(f"{owner} {size}")

        await get("ada", 32)
        waits = [asyncio.ensure_future(get("ada", size)) for size in (20, 1)]
        await asyncio.sleep(0)
        await get("bob", 16)
        assert order == ["ada 32", "bob 16"]
        room.release("ada", 32)
        await asyncio.gather(*waits)
        assert order[2:] == ["ada 20", "ada 1"]

    asyncio.run(body())


@pytest.mark.parametrize("is_admitted", [False, True])
def test_a_cancelled_wait_holds_nothing(is_admitted: bool) -> None:
    async def body() -> None:
        room = FairRoom(64)
        room.take("ada", 64)
        first, second = (asyncio.ensure_future(room.acquire(owner, 10)) for owner in ("bob", "bob"))
        await asyncio.sleep(0)
        if is_admitted:
            room.release("ada", 64)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        if not is_admitted:
            room.release("ada", 64)
        await second
        assert room.used == 10

    asyncio.run(body())
