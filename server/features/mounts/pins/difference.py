"""Show what has changed in what a mounted server lists, in lines that a person can read.

    description: "Looks up a word."
    inputSchema.properties.word.type: "string"

A line for each value, by its path, in the order of the paths; a long text has a line for each of its own. Whatever a
person could not see stands as <U+200B>. The work grows with the size of a form and no faster, whatever a server writes.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from toolgate.server.base.text import UNSEEN
from toolgate.server.features.mounts.pins.line_matching import match_unique
from toolgate.server.features.mounts.pins.outlines import create_outline, read_outline

PLAIN = re.compile(r"[A-Za-z0-9_$/-]+")
LINES = re.compile(r"(?<=[.!?:;] )|(?<=\n)")  # where a text may be cut
MAX_LINES = 2_000  # of one item
MAX_PATH = 300  # characters; longer ones have a digest in place of their beginning
MIN_DIGEST = 8  # characters


def format_definition(data: bytes) -> list[str]:
    """Return the lines of one form of an item. What is too large to be kept has none."""
    return _cut(_list_lines(data)) if data else []


def format_difference(before: bytes, after: bytes) -> list[str]:
    """Return the lines that were removed ("- …") and added ("+ …")."""
    if not before or not after:
        return [f"+ {line}" for line in format_definition(after)]
    if read_outline(before) is not None or read_outline(after) is not None:
        before, after = create_outline(before), create_outline(after)
    new = _list_lines(after)
    changed = list(_compare(_list_lines(before), new))
    return _cut(changed or [f"+ {line}" for line in new])


def show_unseen(text: str) -> str:
    """Return the text with <U+200B> for each character that a person can't see, or a terminal would obey."""
    if text.isprintable() and not re.search(UNSEEN, text):
        return text
    return "".join(_show(each) for each in text)


def _show(character: str) -> str:
    is_seen = character.isprintable() and not re.match(UNSEEN, character)
    return character if is_seen else f"<U+{ord(character):04X}>"


def _cut(lines: list[str]) -> list[str]:
    return lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES], f"… and {len(lines) - MAX_LINES} lines more"]


def _compare(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    """Yield what differs between the lines that both have once, in the same order."""
    i = j = 0
    for matched in (*match_unique(before, after), (len(before), len(after))):
        yield from _compare_blocks(before[i : matched[0]], after[j : matched[1]])
        i, j = matched[0] + 1, matched[1] + 1


def _compare_blocks(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return what differs without the beginning and the end that both have. As many lines stand in pairs."""
    shorter = min(len(before), len(after))
    head = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    most = shorter - head
    tail = next((at for at in range(most) if before[-1 - at] != after[-1 - at]), most)
    removed = [f"- {line}" for line in before[head : len(before) - tail]]
    added = [f"+ {line}" for line in after[head : len(after) - tail]]
    if len(removed) == len(added):
        return [line for pair in zip(removed, added, strict=True) for line in pair]
    return [*removed, *added]


def _list_lines(data: bytes) -> list[str]:
    outline = read_outline(data)
    if outline is None:
        return [show_unseen(line) for line in _format(msgspec.json.decode(data))]
    told = (_join(_extend("", name) if name else "", size) for name, size in sorted(outline.long.items()))
    return [show_unseen(line) for line in (*_format(outline.short), *told) if line != "{}"]


def _format(value: Any) -> Iterator[str]:
    waiting = [("", value)]
    while waiting:
        path, each = waiting.pop()
        if isinstance(each, dict) and each:
            waiting += [(_extend(path, name), each[name]) for name in sorted(each, reverse=True)]
        elif isinstance(each, list) and each:
            path = _shorten(path)
            waiting += [(f"{path}[{number}]", each[number]) for number in range(len(each) - 1, -1, -1)]
        elif isinstance(each, str):
            yield from _format_text(each, path)
        else:
            yield _join(path, json.dumps(each))


def _extend(path: str, name: str) -> str:
    step = name if PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False)
    return _shorten(f"{path}.{step}" if path else step)


def _shorten(path: str) -> str:
    """Return the path, or its end behind the digest of all of it: a line for each value must not repeat a long one."""
    if len(path) <= MAX_PATH:
        return path
    digest = hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:MIN_DIGEST]
    return f"…({digest})…{path[-MAX_PATH // 2 :]}"


def _format_text(text: str, path: str) -> Iterator[str]:
    pieces = [piece for piece in LINES.split(text) if piece] or [""]
    for piece in pieces:
        shown = json.dumps(piece, ensure_ascii=False)
        yield _join(path, shown)


def _join(path: str, shown: str) -> str:
    return f"{path}: {shown}" if path else shown
