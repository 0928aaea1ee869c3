"""Show what has changed in what a mounted server lists, in lines that a person can read.

    description: "Looks up a word."
    inputSchema.properties.word.type: "string"

A line for each value, by its path, in the order of the paths; a long text has a line for each of its own. Whatever a
person could not see stands as <U+200B>.
"""

import difflib
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from toolgate.server.base.text import UNSEEN

PLAIN = re.compile(r"[A-Za-z0-9_$/-]+")
LINES = re.compile(r"(?<=[.!?:;] )|(?<=\n)")  # where a text may be cut
MAX_LINES = 2_000  # of one item


def format_definition(data: bytes) -> list[str]:
    """Return the lines of one form of an item. What is too large to be kept has none."""
    if not data:
        return []
    lines = [show_unseen(line) for line in _format(msgspec.json.decode(data), "")]
    return lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES], f"… and {len(lines) - MAX_LINES} lines more"]


def format_difference(before: bytes, after: bytes) -> list[str]:
    """Return the lines that were removed ("- …") and added ("+ …")."""
    lines = difflib.ndiff(format_definition(before), format_definition(after)) if before else ()
    changed = [line for line in lines if line[:1] in "+-"]
    return changed or [f"+ {line}" for line in format_definition(after)]


def show_unseen(text: str) -> str:
    """Return the text with <U+200B> for each character that a person can't see, or a terminal would obey."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_show(each) for each in text)


def _show(character: str) -> str:
    is_seen = character.isprintable() and not re.match(UNSEEN, character)
    return character if is_seen else f"<U+{ord(character):04X}>"


def _format(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name in sorted(value):
            step = name if PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False)
            yield from _format(value[name], f"{path}.{step}" if path else step)
    elif isinstance(value, list) and value:
        for number, each in enumerate(value):
            yield from _format(each, f"{path}[{number}]")
    elif isinstance(value, str):
        yield from _format_text(value, path)
    else:
        yield _join(path, json.dumps(value))


def _format_text(text: str, path: str) -> Iterator[str]:
    pieces = [piece for piece in LINES.split(text) if piece] or [""]
    for piece in pieces:
        shown = json.dumps(piece, ensure_ascii=False)
        yield _join(path, shown)


def _join(path: str, shown: str) -> str:
    return f"{path}: {shown}" if path else shown
