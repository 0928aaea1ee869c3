"""What is found in the lines of output, and what of the event loop is left to others."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from toolgate.server.features.events.sources.output_watch import CHUNK, MAX_MATCHES, LineMatch, OutputWatch, clean_line
from toolgate.tools.workspace.output.run_record import Run

RUN = cast(Run, type("FakeRun", (), {"id": 7}))


def create_watch(turn: asyncio.Lock, found: list[LineMatch]) -> OutputWatch:
    async def emit(_run: Run, match: LineMatch) -> None:
        found.append(match)

    return OutputWatch(cast(Any, None), turn, emit)


def find_matches(lines: Sequence[bytes], *patterns: str) -> list[LineMatch]:
    """Return the matches in lines, the first of which begins at byte 100."""

    async def look() -> list[LineMatch]:
        found: list[LineMatch] = []
        await create_watch(asyncio.Lock(), found).look(RUN, lines, 100, patterns)
        return found

    return asyncio.run(asyncio.wait_for(look(), 60))


def test_lines_match_as_a_terminal_shows_them_and_have_the_place_where_they_begin() -> None:
    lines = [b"", b"ready", b"\x1b[32mrea\x1b[0mdy now", "bereit, réady".encode(), b"ready soon\r"]
    assert find_matches(lines, "ready") == [
        LineMatch("ready", "ready", 101),
        LineMatch("ready", "ready now", 107),
        LineMatch("ready", "ready soon", 141),
    ]


def test_each_pattern_finds_its_own_lines() -> None:
    assert find_matches([b"one two", b"two"], "one", "tw?", "four") == [
        LineMatch("one", "one two", 100),
        LineMatch("tw?", "one two", 100),
        LineMatch("tw?", "two", 108),
    ]


def test_a_pattern_that_matches_every_line_says_so_a_hundred_times() -> None:
    assert len(find_matches([b"x"] * 1_000, "x")) == MAX_MATCHES


OUTPUT = {  # lines of a chunk
    "empty": [b""] * CHUNK,
    "short": [b"a"] * (CHUNK // 2),
    "escapes": [b"\x1b[31m\xc3\xa9" * 250] * 40,
    "returns": [b"\r" * 2_000 + b"x"] * 32,
    "meters": [b"\r".join(b"%d%% of 100" % number for number in range(400))] * 15,
    "one line": [b"\r" * CHUNK],
    "long": [b"a" * 4_096] * 16,
}
PATTERNS = ["a?" * 127 + chr(number) for number in range(64, 72)]


@pytest.mark.parametrize("kind", OUTPUT)
def test_principals_take_turns_however_many_lines_and_patterns_there_are(kind: str) -> None:
    """Another principal waits for one slice, and not for all of the output."""

    async def look() -> bool:
        turn, found = asyncio.Lock(), list[LineMatch]()
        work = [create_watch(turn, []).look(RUN, OUTPUT[kind] * 20, 0, PATTERNS) for _ in range(2)]
        hostile = [asyncio.create_task(each) for each in work]
        await asyncio.sleep(0)
        await asyncio.wait_for(create_watch(turn, found).look(RUN, [b"ready"], 0, ["ready"]), 60)
        is_first = not any(task.done() for task in hostile)
        for task in hostile:
            task.cancel()
        await asyncio.wait(hostile)
        assert [match.text for match in found] == ["ready"]
        return is_first

    assert asyncio.run(look())


@pytest.mark.parametrize("line", [b"%sx", b"x%s", b"x%sy", b"10%%%s 20%%", b"x %s  "])
def test_many_returns_in_a_row_are_one(line: bytes) -> None:
    assert clean_line(line % (b"\r" * 2_000)) == clean_line(line % b"\r")
