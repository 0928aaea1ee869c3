"""Find the file that a path means, if its name differs only in characters that look alike.

Systems and programs write names with other spaces, quotes, hyphens or compositions than a model repeats: macOS names
screenshots with a narrow no-break space, and decomposes letters.
"""

import os
import re
from collections.abc import Callable, Iterable

MAX_SHOWN = 3  # characters of a name that are described
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


def find_alike_path(path: str, list_names: Callable[[str], Iterable[str]]) -> str | None:
    """Return the existing path that looks like the missing absolute `path`, or None. `list_names` returns the names in
    a folder; errors are its own."""
    place = "/"
    for part in path.split("/"):
        deeper = os.path.join(place, part)
        if os.path.lexists(deeper):
            place = deeper
            continue
        folded = fold_name(part)
        same = next((name for name in sorted(list_names(place)) if fold_name(name) == folded), None)
        if same is None:
            return None
        place = os.path.join(place, same)
    return place


def fold_name(name: str) -> str:
    """Return the name with one form of all characters that look alike."""
    import unicodedata  # start-up: for errors only

    visible = re.sub(INVISIBLE, "", unicodedata.normalize("NFKC", name.translate(ALIKE)))
    return " ".join(visible.casefold().split())


def describe_alike_path(path: str, actual: str) -> str:
    """Return a question that names the actual path and the characters in which it differs."""
    import unicodedata  # start-up: for errors only

    others = sorted(set(actual) - set(path) - set(map(chr, range(128))))[:MAX_SHOWN]
    shown = ", ".join(f"U+{ord(each):04X} {unicodedata.name(each, 'a control character')}" for each in others)
    return f"; did you mean {actual}?" + (f" It has {shown}: in Bash, a ? in its place matches it" if shown else "")
