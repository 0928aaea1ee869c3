"""Find `extensions`: Goose's YAML. Its built-in extensions are no MCP servers that others can start."""

from collections.abc import Iterator, Mapping
from typing import Any

from toolgate.server.features.mounts.config.imports.foreign_server import (
    COMMON,
    ForeignServer,
    KeyReader,
    as_table,
    read_as,
    read_forwarded,
    read_server,
    read_tools,
)

READERS: Mapping[str, KeyReader] = {
    **COMMON,
    "cmd": read_as("command"),
    "envs": read_as("env"),
    "env_keys": read_forwarded,
    "uri": read_as("url"),
    "available_tools": read_tools,
}
KINDS = ("stdio", "sse", "streamable_http")


def find_servers(content: Mapping[str, Any]) -> Iterator[ForeignServer]:
    for name, entry in as_table(content.get("extensions")).items():
        if as_table(entry).get("type") in KINDS:
            yield read_server(name, entry, READERS)
