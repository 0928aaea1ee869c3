"""Mark what a person should look at twice in what a mounted server says of itself: a mark, no verdict.

Characters that a person can't see can hide orders to a model, and the description of a tool has no reason to name the
tool of another server.
"""

import re
from collections.abc import Collection

import msgspec

from toolgate.server.base.text import UNSEEN, list_texts
from toolgate.server.features.mounts.pins.difference import show_unseen
from toolgate.server.features.mounts.pins.outlines import read_outline

DIRECTION = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
PICTURE = (  # what Unicode has as emoji, and blocks around it; the digits of keycaps are none
    "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u21aa\u231a-\u23ff\u24c2\u25aa-\u25fe\u2600-\u27bf\u2934\u2935"
    "\u2b05-\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
)
SPELLED = re.compile(  # one selector behind a picture, a joiner between two, and keycaps
    f"{PICTURE}[\ufe0e\ufe0f]?(?:\u200d{PICTURE}\ufe0f?)*|[0-9#*]\ufe0f\u20e3"
)
# Behind a virama a joiner changes how a conjunct of these scripts is drawn. Elsewhere it may show nothing, and a
# non-joiner behind a letter that joins to none shows nothing either: both are marked.
CONJUNCT = re.compile(
    "(?<=[\u094d\u09cd\u0acd\u0b4d\u0c4d\u0ccd\u0d4d\u0dca])\u200d(?=[\u0905-\u0939\u0985-\u09b9\u0a85-\u0ab9\u0b05-\u0b39"
    "\u0c05-\u0c39\u0c85-\u0cb9\u0d05-\u0d39\u0d9a-\u0dc6])"
)
WORD = re.compile(r"[A-Za-z0-9_-]{3,64}")
DISTINCT = re.compile(r"[_-]|[a-z][A-Z]")  # in a name that is no word of a language
LONG = "is longer than 64 KiB, and only its short fields are shown: ask its maker for the others, or keep it out"
MAX_SHOWN = 5  # of a kind


def find_marks(data: bytes, others: Collection[str] = ()) -> list[str]:
    """Return the marks of one form of an item, in words. `others` are tools of other servers."""
    if not data:
        return ["is too large to be shown"]
    outline = read_outline(data)
    value = msgspec.json.decode(data) if outline is None else outline.short
    texts = [CONJUNCT.sub("", SPELLED.sub(" ", text)) for text in list_texts(value)]
    unseen = {
        each for text in texts if not (text.isascii() and text.isprintable()) for each in text if _is_unseen(each)
    }
    turning = {each for each in unseen if DIRECTION.match(each)}
    named = {word for text in texts for word in WORD.findall(text)}.intersection(others)
    marks = [
        ("turns the direction of writing", [show_unseen(each) for each in turning]),
        ("has invisible characters", [show_unseen(each) for each in unseen - turning]),
        ("names tools of other servers", list(named)),
    ]
    found = [f"{what}: {', '.join(sorted(shown)[:MAX_SHOWN])}" for what, shown in marks if shown]
    return found if outline is None else [LONG, *found]


def is_distinct(name: str) -> bool:
    """Return whether a tool's name is one that no description has by chance."""
    return DISTINCT.search(name) is not None


def _is_unseen(character: str) -> bool:
    return character not in "\n\t\r" and (not character.isprintable() or re.match(UNSEEN, character) is not None)
