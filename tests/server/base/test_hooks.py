"""What is called when a server ends."""

import asyncio

import pytest

from toolgate.server.base.hooks import EndHook


def test_what_ends_later_ends_also_after_a_failure() -> None:
    ended: list[str] = []

    async def fail() -> None:
        ended.append("first")
        raise OSError("the disk is full")

    async def end() -> None:
        ended.append("second")

    with pytest.raises(OSError, match="the disk is full"):
        asyncio.run(EndHook([fail, end])())
    assert ended == ["first", "second"]
