"""Name each form of what a mounted server lists by the SHA-256 of its canonical JSON.

Canonical: keys in order, no blanks. A number is spelled as it is served, so 1 and 1.0 differ; an object that has a key
twice is what is served of it. Any change that a client could see is another digest, and the order of keys is none.
Plain resources are data that come and go, so they have no pins; views (`ui://`) have, with what they may load.
"""

import hashlib
from collections.abc import Collection, Iterator
from typing import Any, Literal

import msgspec

from toolgate.server.features.mounts.lists.list_store import MountLists
from toolgate.server.features.mounts.resource_uris import is_view
from toolgate.server.features.mounts.upstream.errors import hide_secrets

Kind = Literal["tool", "prompt", "resource", "template", "skill", "instructions"]

FIELDS: tuple[tuple[Kind, str, str], ...] = (  # kind → field of the lists, and of an item that names it
    ("tool", "tools", "name"),
    ("prompt", "prompts", "name"),
    ("resource", "resources", "uri"),
    ("template", "templates", "uriTemplate"),
    ("skill", "skills", "uri"),
)


class ItemDefinition(msgspec.Struct, frozen=True):
    """One form of an item: `data` is its canonical JSON, `name` its own, its URI, or "" of instructions. Both may lack
    secrets, which the digest has."""

    kind: Kind
    name: str
    digest: str
    data: bytes


def define(kind: Kind, name: str, value: Any, hidden: Collection[str] = ()) -> ItemDefinition | None:
    """Return the form of an item without `hidden` texts, or None for one that is nested too deeply to be served."""
    try:
        data = msgspec.json.encode(value, order="deterministic")
        digest = hashlib.sha256(data).hexdigest()
        if hidden:
            name, data = hide_secrets(name, hidden), msgspec.json.encode(_hide(value, hidden), order="deterministic")
    except RecursionError:
        return None
    return ItemDefinition(kind, name, digest, data)


def define_item(kind: Kind, named: str, item: dict[str, Any], hidden: Collection[str] = ()) -> ItemDefinition | None:
    """Return the form of an item in a list, or None for one that can't be served."""
    name = item.get(named)
    return define(kind, name, item, hidden) if isinstance(name, str) else None


def has_pin(kind: Kind, name: object) -> bool:
    """Return whether an item of this name is held to its pin. One without a name is served in no case."""
    return isinstance(name, str) and (kind != "resource" or is_view(name))


def list_definitions(lists: MountLists, hidden: Collection[str] = ()) -> Iterator[ItemDefinition]:
    """Yield the form of each item that has a pin, without `hidden` texts."""
    for kind, field, named in FIELDS:
        for item in getattr(lists, field):
            if has_pin(kind, item.get(named)) and (found := define_item(kind, named, item, hidden)) is not None:
                yield found
    if lists.instructions and (found := define("instructions", "", lists.instructions, hidden)) is not None:
        yield found


def _hide(value: Any, hidden: Collection[str]) -> Any:
    if isinstance(value, str):
        return hide_secrets(value, hidden)
    if isinstance(value, dict):
        return {hide_secrets(name, hidden): _hide(each, hidden) for name, each in value.items()}
    return [_hide(each, hidden) for each in value] if isinstance(value, list) else value
