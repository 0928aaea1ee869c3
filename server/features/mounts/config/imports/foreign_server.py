"""Hold one server of a client's file, with the keys of our own, and the values as the client has them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

IGNORED = frozenset(("name", "id", "title", "description", "source", "icon", "iconPath", "version", "gallery"))


class ForeignServer(msgspec.Struct):
    """One server.

    rows: its keys, as `[mounts.NAME]` has them
    skipped: the keys of the client that have no meaning here
    project: where the client has it, if it is not everywhere
    inputs: what the client asks its person for: ids, each with a description
    """

    name: str
    rows: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    skipped: list[str] = msgspec.field(default_factory=list[str])
    is_disabled: bool = False
    project: str = ""
    inputs: Mapping[str, str] = {}


KeyReader = Callable[[ForeignServer, Any], None]


def read_as(key: str) -> KeyReader:
    """Return a reader that takes a value over under our name of the key."""

    def read(server: ForeignServer, value: Any) -> None:
        server.rows[key] = value

    return read


def read_disabled(server: ForeignServer, value: Any) -> None:
    server.is_disabled = server.is_disabled or value is True


def read_enabled(server: ForeignServer, value: Any) -> None:
    server.is_disabled = server.is_disabled or value is False


def read_tools(server: ForeignServer, value: Any) -> None:
    """Take over the names of the only tools to serve."""
    if value != ["*"] and isinstance(value, list):
        server.rows["tools"] = [*value, *server.rows.get("tools", [])]


def read_hidden_tools(server: ForeignServer, value: Any) -> None:
    """Take over the names of tools that are left out."""
    names = value if isinstance(value, list) else []
    server.rows["tools"] = [*server.rows.get("tools", []), *(f"!{name}" for name in names)]


def read_forwarded(server: ForeignServer, value: Any) -> None:
    """Take over the names of variables that the server gets from the environment."""
    names = value if isinstance(value, list) else []
    forwarded = {name: f"${{env:{name}}}" for name in names if isinstance(name, str)}
    server.rows["env"] = {**forwarded, **as_table(server.rows.get("env"))}


COMMON: Mapping[str, KeyReader] = {
    "command": read_as("command"),
    "args": read_as("args"),
    "cwd": read_as("cwd"),
    "env": read_as("env"),
    "url": read_as("url"),
    "headers": read_as("headers"),
    "type": read_as("type"),
    "disabled": read_disabled,
    "enabled": read_enabled,
}


def read_server(name: Any, entry: Any, readers: Mapping[str, KeyReader], project: str = "") -> ForeignServer:
    """Return a server; what is no object is one without keys."""
    server = ForeignServer(str(name), project=project)
    for key, value in as_table(entry).items():
        if key in IGNORED or value is None:
            continue
        reader = readers.get(key)
        if reader is None:
            server.skipped.append(str(key))
        else:
            reader(server, value)
    return server


def read_servers(entries: Any, readers: Mapping[str, KeyReader], project: str = "") -> Iterator[ForeignServer]:
    """Yield the servers of an object by their names, or of a list with names in it."""
    if isinstance(entries, list):
        named = [(as_table(entry).get("name", "server"), entry) for entry in entries]
    else:
        named = list(as_table(entries).items())
    for name, entry in named:
        yield read_server(name, entry, readers, project)


def as_table(value: Any) -> Mapping[str, Any]:
    """Return an object, or an empty one in place of another value."""
    return value if isinstance(value, dict) else {}
