"""Find what a model may have meant. Runs in the caller's sandbox, for errors only."""

import os
from difflib import get_close_matches

MAX_COMPARED = 5_000  # lines or names: comparing is slow
MOST = 3


def find_near_lines(text: str, sought: str) -> list[tuple[int, str]]:
    """Return up to three lines that differ from `sought` in white space, else that look like it, with their numbers."""
    lines = text.splitlines()
    bare = "".join(sought.split())
    if not bare:
        return []
    same = [(number, line) for number, line in enumerate(lines, 1) if bare in "".join(line.split())]
    if same:
        return same[:MOST]
    by_text = {line.strip(): number for number, line in reversed([*enumerate(lines[:MAX_COMPARED], 1)])}
    return [(by_text[line], lines[by_text[line] - 1]) for line in get_close_matches(sought.strip(), by_text, MOST, 0.6)]


def find_near_names(real: str) -> list[str]:
    """Return up to three names beside a missing path that look like its own."""
    folder, name = os.path.split(real)
    try:
        names = sorted(os.listdir(folder)[:MAX_COMPARED])
    except OSError:
        return []
    folded = {each.casefold(): each for each in names}
    return [folded[each] for each in get_close_matches(name.casefold(), folded, MOST, 0.7)]
