"""Mark what a person should look at twice in what a mounted server says of itself: a mark, no verdict.

Characters that a person can't see can hide orders to a model, and the description of a tool has no reason to name the
tool of another server.
"""

import re
from collections.abc import Collection

import msgspec

from toolgate.server.base.text import UNSEEN, list_texts
from toolgate.server.features.mounts.pins.difference import show_unseen

DIRECTION = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
EMOJI = re.compile("[\ufe0e\ufe0f]|(?<=[^\\x00-\\x7f])\u200d(?=[^\\x00-\\x7f])")  # how pictures are spelled
WORD = re.compile(r"[A-Za-z0-9_-]{3,64}")
DISTINCT = re.compile(r"[_-]|[a-z][A-Z]")  # in a name that is no word of a language
MAX_SHOWN = 5  # of a kind


def find_marks(data: bytes, others: Collection[str] = ()) -> list[str]:
    """Return the marks of one form of an item, in words. `others` are tools of other servers."""
    if not data:
        return ["too large to be shown"]
    texts = [EMOJI.sub("", text) for text in list_texts(msgspec.json.decode(data))]
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
    return [f"{what}: {', '.join(sorted(shown)[:MAX_SHOWN])}" for what, shown in marks if shown]


def is_distinct(name: str) -> bool:
    """Return whether a tool's name is one that no description has by chance."""
    return DISTINCT.search(name) is not None


def _is_unseen(character: str) -> bool:
    return character not in "\n\t\r" and (not character.isprintable() or re.match(UNSEEN, character) is not None)
