"""Find what a model may have meant. Runs in the caller's sandbox, for errors only."""

import os
import re
import unicodedata
from difflib import get_close_matches

from .paths import show_name

MAX_COMPARED = 5_000  # lines or names: comparing is slow
MOST = 3
ALIKE = {  # each character of a row looks like its first
    ord(character): row[0]
    for row in (
        "'\u2018\u2019\u201a\u201b\u02b9\u02bc\u2032\u00b4`",
        '"\u201c\u201d\u201e\u201f\u2033',
        "-\u2010\u2011\u2012\u2013\u2014\u2015\u2212",
    )
    for character in row
}
INVISIBLE = "[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]"


def find_near_lines(text: str, sought: str) -> list[tuple[int, str]]:
    """Return up to three lines that look like `sought`, with their numbers: first those that differ from it in white
    space or in characters that look alike."""
    lines = text.splitlines()
    bare = "".join(fold_text(sought).split())
    if not bare:
        return []
    same = [(number, line) for number, line in enumerate(lines, 1) if bare in "".join(fold_text(line).split())]
    if same:
        return same[:MOST]
    by_text = {line.strip(): number for number, line in reversed([*enumerate(lines[:MAX_COMPARED], 1)])}
    return [(by_text[line], lines[by_text[line] - 1]) for line in get_close_matches(sought.strip(), by_text, MOST, 0.6)]


def suggest_paths(real: str) -> str:
    """Return a question that names the paths that a missing one may mean, or "".

    Names that look alike differ in spaces, quotes, hyphens or composition: macOS writes others than a model repeats.
    """
    actual = _find_alike_path(real)
    if actual is not None:
        characters = describe_characters(actual, real)
        hint = f" It has {characters}: in Bash, a ? in its place matches it" if characters else ""
        return f"; did you mean {show_name(actual)}?{hint}"
    near = _find_near_names(real)
    return f"; did you mean {' or '.join(map(show_name, near))}?" if near else ""


def _find_alike_path(real: str) -> str | None:
    place = "/"
    for part in real.split("/"):
        deeper = os.path.join(place, part)
        if not os.path.lexists(deeper):
            folded = fold_text(part)
            same = [name for name in _list_names(place) if fold_text(name) == folded]
            if not same:
                return None
            deeper = os.path.join(place, same[0])
        place = deeper
    return place


def fold_text(text: str) -> str:
    """Return the text with one form of all characters that look alike."""
    text = text.translate(ALIKE)
    if not text.isascii():
        text = re.sub(INVISIBLE, "", unicodedata.normalize("NFKC", text))
    return " ".join(text.casefold().split())


def describe_characters(actual: str, other: str) -> str:
    """Return the names of the characters outside ASCII that `actual` has and `other` lacks, or ""."""
    characters = sorted(set(actual) - set(other) - set(map(chr, range(128))))[:MOST]
    return ", ".join(f"U+{ord(each):04X} {unicodedata.name(each, 'a control character')}" for each in characters)


def _list_names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder)[:MAX_COMPARED])
    except OSError:
        return []


def _find_near_names(real: str) -> list[str]:
    """Return up to three names beside a missing path that look like its own."""
    folder, name = os.path.split(real)
    folded = {each.casefold(): each for each in _list_names(folder)}
    return [folded[each] for each in get_close_matches(name.casefold(), folded, MOST, 0.7)]
