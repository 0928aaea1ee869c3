"""Match lines with patterns in which only `*` and `?` are special.

The parts between two `*` are searched one after the other, each once. So the time is bounded by the line's length times
the pattern's, whatever a client asks for.
"""

import re
from functools import lru_cache

MAX_LINE = 4_096  # characters of a line that are looked at


@lru_cache(256)
def compile_line_pattern(pattern: str) -> tuple[re.Pattern[str], ...]:
    """Return the parts that a line must hold in this order."""
    return tuple(re.compile(re.escape(part).replace(r"\?", ".")) for part in pattern.split("*") if part)


def matches_line(pattern: str, line: str) -> bool:
    """Return whether the line holds what the pattern says, anywhere."""
    place = 0
    for part in compile_line_pattern(pattern):
        found = part.search(line, place, MAX_LINE)
        if found is None:
            return False
        place = found.end()
    return True
