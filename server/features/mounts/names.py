"""Choose the names under which tools and prompts of mounted servers are served.

A served name matches `[A-Za-z0-9_-]{1,64}`, which the APIs of models and all clients take. Where two would be the same,
also but for their case, and where one is cut, each of them gets "_" and six digits of a hash of its mount and its own
name: so names depend neither on the order of mounts nor on which server answers first. Calls are routed by the table,
since no name can be split for sure.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

MAX_NAME = 64  # characters; older clients of the API refuse more
DIGITS = 6
MAX_LEVEL = 9  # times DIGITS: what is the same then is one name
OUTSIDE = re.compile("[^A-Za-z0-9_-]")

OriginalName = tuple[str, str]  # the mount, and its own name of the part


class MountNames(msgspec.Struct, frozen=True):
    """The names of one kind of parts of a mount, and its prefix."""

    mount: str
    prefix: str
    names: Sequence[str]


def choose_names(mounts: Iterable[MountNames], taken: Collection[str] = ()) -> Mapping[OriginalName, str]:
    """Return the served name of each part. `taken` are names that others have: they stay as they are."""
    plain = {(each.mount, name): OUTSIDE.sub("_", each.prefix + name) for each in mounts for name in each.names}
    reserved = {name.lower() for name in taken}
    levels = {original: 0 if 0 < len(text) <= MAX_NAME else 1 for original, text in plain.items()}
    while True:
        chosen = {original: _format_name(original, text, levels[original]) for original, text in plain.items()}
        clashing = [original for original in _find_clashes(chosen, levels, reserved) if levels[original] < MAX_LEVEL]
        if not clashing:
            return chosen
        for original in clashing:
            levels[original] += 1


def _format_name(original: OriginalName, text: str, level: int) -> str:
    """Return the name with as many digits as the level wants, cut to fit."""
    if level == 0:
        return text
    ending = "_" + hashlib.sha256("\0".join(original).encode("utf-8", "surrogatepass")).hexdigest()[: level * DIGITS]
    return text[: MAX_NAME - len(ending)] + ending


def _find_clashes(
    chosen: Mapping[OriginalName, str], levels: Mapping[OriginalName, int], reserved: Collection[str]
) -> list[OriginalName]:
    """Return those of each clash that have the fewest digits: one with a hash stays where a plain one can give way."""
    groups: defaultdict[str, list[OriginalName]] = defaultdict(list)
    for original, name in chosen.items():
        groups[name.lower()].append(original)
    clashing: list[OriginalName] = []
    for name, group in groups.items():
        if len(group) > 1 or name in reserved:
            fewest = min(levels[original] for original in group)
            clashing += [original for original in group if levels[original] == fewest]
    return clashing
