"""Find `mcp`: OpenCode, whose command is a list of words."""

from collections.abc import Iterator, Mapping
from typing import Any

from toolgate.server.features.mounts.config.imports.foreign_server import (
    COMMON,
    ForeignServer,
    KeyReader,
    as_table,
    read_as,
    read_servers,
)

READERS: Mapping[str, KeyReader] = {**COMMON, "environment": read_as("env")}


def find_servers(content: Mapping[str, Any]) -> Iterator[ForeignServer]:
    servers = as_table(content.get("mcp"))
    if "servers" not in servers:  # else it is VS Code's
        yield from read_servers(servers, READERS)
