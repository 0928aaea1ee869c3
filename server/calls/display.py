"""Arguments as a person has to see them: nothing in them is invisible, turns the line around or looks like the end of
it. Knows nothing of who asks or why."""

import json
import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

MAX_SHOWN = 4_000  # characters of one argument: a screen or two
MAX_ALL = 12_000  # of all of them
MAX_NAME = 100  # of the name of one
NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")  # that needs no quotes
MARKS = 2  # combining marks on one letter: more than any script needs hide what is around them
BLANKS = re.compile(" {9,}")
# What has to be looked at one by one. The rest, the letters of much that is written, is seen as what it is.
ODD = re.compile(
    "[^ -~\u00a1-\u00ac\u00ae-\u02ff\u0391-\u03a1\u03a3-\u0482\u05d0-\u05ea\u0620-\u064a\u2010-\u2027\u2030-\u205e"
    "\u2190-\u23ff\u3041-\u3096\u4e00-\u9fff\uac00-\ud7a3\U0001f300-\U0001f64f]+"
)

# printable, says Unicode, but nothing is to be seen: fillers, joiners, variation selectors, a blank of Braille
UNSEEN = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001d159\U000e0000-\U000e0fff]"
)


def format_arguments(given: Mapping[str, Any]) -> str:
    """A line for each argument, in JSON. Of a long one the middle is left out, and counted outside of the quotes."""
    lines: list[str] = []
    left = MAX_ALL
    for name, value in given.items():
        if left <= 0:
            lines.append(f"… and {len(given) - len(lines)} more arguments that are NOT SHOWN")
            break
        named = name if NAME.fullmatch(name) else _shorten(name, MAX_NAME)
        lines.append(f"{named}: {_shorten(value, min(MAX_SHOWN, left))}")
        left -= len(lines[-1])
    return "\n".join(lines)


def _shorten(value: Any, most: int) -> str:
    is_text = isinstance(value, str)
    text = value if is_text else _json(value)
    if len(text) <= most:
        return _quote(text, is_text)
    half = most // 2
    cut = f"… {len(text) - 2 * half:,} characters are NOT SHOWN here …"
    return f"{_quote(text[:half], is_text)}\n  {cut}\n  {_quote(text[-half:], is_text)}"


def _quote(text: str, is_text: bool) -> str:
    """Visible, in quotes, with the blanks counted that would push the rest out of sight."""
    plain = escape_invisible(_json(text) if is_text else text)
    return BLANKS.sub(lambda found: f'" … {len(found[0]):,} spaces … "', plain)


def escape_invisible(text: str) -> str:
    """The text, with an escape (\\u202e) for each character that can't be seen as what it is."""
    return ODD.sub(_escape, text)


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
    """Whether it is a mark on the letter before, its escape, and whether it is seen at all."""
    is_mark = unicodedata.combining(character) > 0 or unicodedata.category(character) == "Me"
    is_seen = character.isprintable() and not UNSEEN.match(character)
    return is_mark, json.dumps(character)[1:-1], is_seen


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)  # of the standard library: it takes lone surrogates, too
