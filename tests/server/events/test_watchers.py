"""What watchers of output find in lines, and what they leave of the event loop to others."""

import asyncio
from typing import Any, cast

import pytest

from toolgate.server.events.watchers import CHUNK, SLICE, EventWatchers


def create_watchers() -> EventWatchers:
    nothing = cast(Any, None)
    return EventWatchers(nothing, nothing, nothing, nothing)


def test_lines_match_as_a_terminal_shows_them_and_have_the_place_where_they_begin() -> None:
    lines = [
        b"",
        b"ready",
        b"\x1b[32mrea\x1b[0mdy now",
        "bereit, réady".encode(),
        b"ready soon\r",
        b"ready last",
    ]
    found = asyncio.run(create_watchers()._find_matches("ready", lines, 100, 3))
    assert found == [("ready", 101), ("ready now", 107), ("ready soon", 141)]


@pytest.mark.parametrize("line", [b"", b"a", b"\x1b[31m", b"a\rb"])
def test_other_work_comes_after_every_few_lines_however_many_watchers_look(line: bytes) -> None:
    lines = [line] * (CHUNK // (len(line) + 1))

    async def look() -> int:
        watchers, turns = create_watchers(), 0
        looking = asyncio.gather(*(watchers._find_matches("needle", lines, 0, 100) for _ in range(4)))
        while not looking.done():
            await asyncio.sleep(0)
            turns += 1
        assert await looking == [[]] * 4
        return turns

    assert asyncio.run(look()) >= 4 * (len(lines) // SLICE)
