"""Match lines with patterns in which only `*` and `?` are special.

The parts between two `*` are searched one after the other, each once. So the time is bounded by the line's length times
the pattern's, whatever a client asks for. The longest searches are made in steps, between which other work may run.
"""

import re
from collections.abc import Generator
from functools import lru_cache

MAX_LINE = 4_096  # characters of a line that are looked at
STEP = 2**16  # characters that one step compares at most: half a millisecond


@lru_cache(256)
def compile_line_pattern(pattern: str) -> tuple[tuple[re.Pattern[str], int], ...]:
    """Return the parts that a line must hold in this order, and the length of each."""
    parts = [part for part in pattern.split("*") if part]
    return tuple((re.compile(re.escape(part).replace(r"\?", ".")), len(part)) for part in parts)


def match_in_steps(pattern: str, line: str) -> Generator[None, None, bool]:
    """Return whether the line holds what the pattern says, anywhere. Yield before each further step."""
    place, end = 0, min(len(line), MAX_LINE)
    for part, length in compile_line_pattern(pattern):
        step = max(1, STEP // length)  # places where the part may begin
        found = part.search(line, place, min(end, place + step + length - 1))
        while found is None:
            place += step
            if place + length > end:
                return False
            yield
            found = part.search(line, place, min(end, place + step + length - 1))
        place = found.end()
    return True


def matches_line(pattern: str, line: str) -> bool:
    """Return whether the line holds what the pattern says, in one step."""
    steps = match_in_steps(pattern, line)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bool(end.value)
