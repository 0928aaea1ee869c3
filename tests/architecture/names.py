"""Find names that tell a reader nothing: bare participles, pronouns, metaphors, and class names that occur twice."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.architecture import rooms

WORDS = {
    "participles": (
        "told said given held kept found shown spelled spelt asked wanted made known left sent taken gone done begun "
        "written lent seen met meant felt bound brought bought caught chosen come driven fallen fed forgotten got "
        "grown heard hidden laid led lost paid risen shut slept spent stood stuck swept thought thrown torn "
        "understood woken won worn borrowed did"
    ),
    "pronouns": (
        "one it who whom whose what which that this these those him her them us me he she they we ours theirs "
        "somebody nobody anybody whoever whatever here there how"
    ),
    "metaphors": "house room seat manners desk glance walk quarters dialect outlet props standing entrance departures",
}
BANNED = frozenset(word for words in WORDS.values() for word in words.split())
NOUNS_IN_ED = ("feed", "seed", "need", "embed", "speed", "exceed", "proceed", "succeed")


class Name(NamedTuple):
    path: Path
    line: int
    kind: str  # module, class or function
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.kind} {self.name}"


def is_bare(name: str) -> bool:
    """Return whether a name is a single word that names neither a thing nor an action."""
    word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.strip("_")).lower()
    if word in BANNED:
        return True
    return re.fullmatch(r"[a-z]+ed", word) is not None and word not in NOUNS_IN_ED


@cache
def names() -> tuple[Name, ...]:
    """Return every module, class and function of the program."""
    return tuple(_find_names())


def _find_names() -> Iterator[Name]:
    for path in rooms.sources():
        yield Name(path, 1, "module", path.parent.name if path.stem == "__init__" else path.stem)
        for node in rooms.nodes(path):
            if isinstance(node, ast.ClassDef):
                yield Name(path, node.lineno, "class", node.name)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield Name(path, node.lineno, "function", node.name)


def public_classes() -> dict[str, list[Path]]:
    """Return each top-level class name and the files that define it."""
    found: dict[str, list[Path]] = {}
    for path in rooms.sources():
        for node in rooms.parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(path)
    return found


def count_participles() -> int:
    """Return how often the thirteen banned words are an identifier or a part of one."""
    words = "told|said|given|held|kept|found|shown|spelled|asked|wanted|made|known|left"
    pattern = re.compile(rf"(?<![a-z])(?:{words})(?![a-z])")
    count = 0
    for path in rooms.sources():
        for node in rooms.nodes(path):
            name = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "arg", None)
            name = name or getattr(node, "name", None)
            count += bool(isinstance(name, str) and pattern.search(name.lower()))
    return count
