"""Frames arrive whole, and large ones few at a time."""

import asyncio

import pytest

from tests.tools.shell_commands import BOUND
from toolgate.server.base.rpc import frames

WORDS = frames.create_decoder(str)
WHOLE = b'"' + b"x" * frames.LARGE + b'"'


def feed(*pieces: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(b"".join(pieces))
    return reader


def test_a_large_frame_that_does_not_end_makes_room_for_the_next() -> None:
    async def body() -> None:
        arrivals = frames.FrameArrivals(1, 0.2)
        head = frames.LENGTH.pack(len(WHOLE))
        half, whole, small = feed(head, WHOLE[:100]), feed(head, WHOLE), feed(frames.LENGTH.pack(3), b'"s"')
        ends = [asyncio.ensure_future(frames.read_frame(half, WORDS, arrivals=arrivals))]
        await asyncio.sleep(0)
        ends += [asyncio.ensure_future(frames.read_frame(each, WORDS, arrivals=arrivals)) for each in (whole, small)]
        assert await asyncio.wait_for(ends[2], BOUND) == "s"
        assert not ends[1].done()
        with pytest.raises(frames.MalformedFrameError, match=r"only a part of a large message in 0\.2 s"):
            await asyncio.wait_for(ends[0], BOUND)
        assert len(await asyncio.wait_for(ends[1], BOUND)) == frames.LARGE

    asyncio.run(body())


def test_the_end_of_a_connection_is_not_taken_for_a_slow_frame() -> None:
    async def body() -> None:
        reader = feed(frames.LENGTH.pack(len(WHOLE)))
        reader.set_exception(TimeoutError("the kernel's"))
        with pytest.raises(TimeoutError, match="the kernel's"):
            await frames.read_frame(reader, WORDS, arrivals=frames.FrameArrivals(1, BOUND))

    asyncio.run(body())
