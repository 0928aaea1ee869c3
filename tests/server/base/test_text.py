"""Foreign text as a person has to see it."""

import json
import random
import re
import unicodedata

from toolgate.server.base.text import MARKS, UNSEEN, escape_invisible


def _one_by_one(text: str) -> str:
    """What `escape_invisible` is to give, without any short cut."""
    shown: list[str] = []
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.combining(character) or unicodedata.category(character) == "Me" else 0
        unseen = not character.isprintable() or re.match(UNSEEN, character) or marks > MARKS
        shown.append(json.dumps(character)[1:-1] if unseen else character)
    return "".join(shown)


def test_what_is_not_looked_at_one_by_one_needs_no_look() -> None:
    every = [chr(number) for number in range(0x30000)]
    assert all(escape_invisible(f"a{character}") == _one_by_one(f"a{character}") for character in every)
    odd = random.Random(1)
    for _ in range(500):
        text = "".join(odd.choices([*odd.choices(every, k=20), "\u0301", "\u0489", "a", "\u202e"], k=60))
        assert escape_invisible(text) == _one_by_one(text)
