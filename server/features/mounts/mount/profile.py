"""Say what a client can do, as a mounted server is told: exactly that, and never more.

A server of the sessions era is told once, so clients that can do different things never share a conversation.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from toolgate.server.protocol.request_meta import TASKS

PATH = "toolgate/path"  # of `experimental`: the servers that a request has passed on its way
SERVERS = "servers"  # their ids there: what is experimental is an object
MAX_PATH = 8  # servers; no way is so long
MIRRORED = ("elicitation", "roots", "sampling")
MAX_EXTENSIONS = 8
MAX_PROFILE = 4_096  # bytes; no client declares as much


class ClientProfile(msgspec.Struct, frozen=True):
    """What one kind of client can do. `key` is the same for the same capabilities, which name its path, too.
    `principal`: whose clients they are, where they are told what is one person's alone."""

    key: bytes
    capabilities: Mapping[str, Any] = {}
    principal: str = ""

    def for_principal(self, principal: str) -> "ClientProfile":
        """Return the profile of these clients of one person."""
        return ClientProfile(self.key + principal.encode(), self.capabilities, principal)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClientProfile) and self.key == other.key


def create_profile(declared: Mapping[str, Any]) -> ClientProfile:
    """Return the profile of a client with these capabilities. A client that declares too much can do nothing."""
    if not declared:
        return NOTHING
    told = {name: declared[name] for name in MIRRORED if isinstance(declared.get(name), dict)}
    if "roots" in told:
        told["roots"] = {}  # their changes are not passed on
    extensions = declared.get("extensions")
    if isinstance(extensions, dict):
        others = {name: extensions[name] for name in sorted(extensions)[:MAX_EXTENSIONS] if name != TASKS}
        if others:
            told["extensions"] = others
    if path := find_path(declared):
        told["experimental"] = {PATH: {SERVERS: path}}
    key = msgspec.json.encode(told, order="deterministic")
    return ClientProfile(key, told) if len(key) <= MAX_PROFILE else NOTHING


def find_path(declared: Mapping[str, Any]) -> list[str]:
    """Return the ids of the servers that the request has passed."""
    experimental = declared.get("experimental")
    told = experimental.get(PATH) if isinstance(experimental, dict) else None
    path = told.get(SERVERS) if isinstance(told, dict) else None
    return [str(each)[:64] for each in path[: MAX_PATH + 1]] if isinstance(path, list) else []


def extend_path(capabilities: Mapping[str, Any], own: str) -> dict[str, Any]:
    """Return the capabilities that the next server is told, with this one on the path."""
    return {**capabilities, "experimental": {PATH: {SERVERS: [*find_path(capabilities), own]}}}


NOTHING = ClientProfile(b"{}")
