"""Make foreign text safe to show by one of three rules, and put system errors into words.

to_line             for a status line: what is not printable becomes a blank
escape_unprintable  for logs and tables: what is not printable is escaped, so nothing is lost
escape_invisible    for a person's decision: what is printable but invisible is escaped too
"""

import re
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

MARKS = 2  # combining marks on one letter: no script needs more, and more can hide the text around
# Runs of characters to check one by one. The rest, letters of common scripts, is shown as it is.
ODD = (
    "[^ -~\u00a1-\u00ac\u00ae-\u02ff\u0391-\u03a1\u03a3-\u0482\u05d0-\u05ea\u0620-\u064a\u2010-\u2027\u2030-\u205e"
    "\u2190-\u23ff\u3041-\u3096\u4e00-\u9fff\uac00-\ud7a3\U0001f300-\U0001f64f]+"
)

# Printable in Unicode, yet invisible: fillers, joiners, variation selectors, the Braille blank.
MAX_BEGUN = 4  # names that one word begins, in an error
UNSEEN = (
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001d159\U000e0000-\U000e0fff]"
)


def describe_os_error(error: OSError) -> str:
    """Return what failed in the system's words, without the number: "/path: permission denied"."""
    reason = error.strerror.lower() if error.strerror else str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename else reason


def show_bytes(word: str) -> str:
    """Return a word with \\xff for each of its bytes that is not UTF-8, as Python has read it from the system."""
    return "".join(f"\\x{ord(each) & 0xFF:02x}" if "\ud800" <= each <= "\udfff" else each for each in word)


def format_size(count: int) -> str:
    """Return bytes as people read them: 1.5 GiB."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count / 1024:.0f} KiB"


def suggest(word: str, choices: Iterable[str], prefix: str = "") -> str:
    """Return " (did you mean X?)", or "" if no name is close. The names that the word begins, as `claude` does
    `claude-code`, are the closest.

    `prefix`, such as "--", is shown before the name and not compared.
    """
    from toolgate.tools.api.text.cleaning import closest  # start-up

    names = list(choices)
    begun = [name for name in names if word and name.casefold().startswith(f"{word.casefold()}-")]
    found = begun or list(filter(None, [closest(word, names)]))
    return f" (did you mean {' or '.join(f'{prefix}{name}' for name in found[:MAX_BEGUN])}?)" if found else ""


def list_texts(value: Any) -> list[str]:
    """Return the texts in a JSON value, with the names of its fields, in no order."""
    texts = list[str]()
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str() as text:
                texts.append(text)
            case dict() as fields:
                texts += fields
                waiting += fields.values()
            case list() as items:
                waiting += items
            case _:
                pass
    return texts


def to_line(text: str, limit: int) -> str:
    """Return the beginning of the text with a blank for each character that is not printable."""
    return "".join(character if character.isprintable() else " " for character in text[:limit])


def escape_unprintable(text: str) -> str:
    """Return the text with an escape for each character that a terminal or a log could treat as a command."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def escape_lines(text: str) -> str:
    """Return the text as `escape_unprintable` does; line ends and tabs stay."""
    return re.sub(r"[^\n\t]+", lambda found: escape_unprintable(found[0]), text)


def escape_invisible(text: str) -> str:
    r"""Return the text with an escape (\u202e) for each character that a person can't see."""
    return re.sub(ODD, _escape, text)


def _escape(found: "re.Match[str]") -> str:
    shown: list[str] = []
    marks = 0
    for character in found[0]:
        is_mark, escape, is_seen = _classify_character(character)
        marks = marks + 1 if is_mark else 0
        shown.append(character if is_seen and marks <= MARKS else escape)
    return "".join(shown)


@lru_cache(4_096)
def _classify_character(character: str) -> tuple[bool, str, bool]:
    """Return whether the character is a mark on the letter before, its escape, and whether it is visible."""
    import json  # start-up: few servers show such a character
    import unicodedata

    is_mark = unicodedata.combining(character) > 0 or unicodedata.category(character) == "Me"
    is_seen = character.isprintable() and not re.match(UNSEEN, character)
    return is_mark, json.dumps(character)[1:-1], is_seen


def format_time(seconds: float) -> str:
    """Return the time in ISO 8601, UTC, with milliseconds."""
    return _format_milliseconds(round(seconds * 1000))


@lru_cache(4)  # several calls may end in one
def _format_milliseconds(milliseconds: int) -> str:
    whole, thousandths = divmod(milliseconds, 1000)
    return f"{_second(whole)}.{thousandths:03d}Z"


@lru_cache(4)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
