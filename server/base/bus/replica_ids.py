"""Name replicas, and begin ids with the name of the replica that they lead to."""

import re
import secrets
from typing import NamedTuple

SEPARATOR = "."
NAME = re.compile(r"[0-9a-f]{8}")  # short, since each event's id repeats it


class ReplicaId(NamedTuple):
    """An id of something that lives at one replica."""

    replica: str
    rest: str


def create_name() -> str:
    """Return a name that no other process has."""
    return secrets.token_hex(4)


def is_name(text: str) -> bool:
    return NAME.fullmatch(text) is not None


def format_id(replica: str, rest: str) -> str:
    return f"{replica}{SEPARATOR}{rest}"


def create_id_at(replica: str) -> str:
    """Return a new unguessable id of something that lives at a replica."""
    return format_id(replica, secrets.token_urlsafe(24))


def parse_id(id: str) -> ReplicaId | None:
    """Return the parts of an id, or None if it begins with no replica's name. The name may be a forged one."""
    name, separator, rest = id.partition(SEPARATOR)
    return ReplicaId(name, rest) if separator and is_name(name) else None
