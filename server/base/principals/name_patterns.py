"""Match names of tools, prompts and resources by lists of patterns, such as `search_*` and `!search_private`.

Patterns are those of fnmatch, and case counts. The last one that matches decides; "!" leaves out. A list that begins
with "!" starts from all names.
"""

import fnmatch
from collections.abc import Sequence

MAX_PATTERN = 200  # characters; names have at most 128


def parse_pattern(word: str) -> str:
    """Return the pattern. Raises ValueError for one that can match no name."""
    if not word.removeprefix("!") or len(word) > MAX_PATTERN or not word.isprintable() or word != word.strip():
        raise ValueError(f"must be patterns of names, such as search_* or !search_private, not {word!r}")
    return word


def check_order(patterns: Sequence[str]) -> None:
    """Raise ValueError where "*" takes back a "!" that stands before it."""
    excluded = next((pattern for pattern in patterns if pattern.startswith("!")), None)
    if excluded is not None and "*" in patterns[patterns.index(excluded) :]:
        raise ValueError(f'"*" takes back {excluded!r}, since the last pattern that matches decides: write "*" first')


def is_chosen(name: str, patterns: Sequence[str]) -> bool:
    """Return whether the patterns choose the name; no patterns choose all."""
    chosen = not patterns or patterns[0].startswith("!")
    for pattern in patterns:
        if fnmatch.fnmatchcase(name, pattern.removeprefix("!")):
            chosen = not pattern.startswith("!")
    return chosen
