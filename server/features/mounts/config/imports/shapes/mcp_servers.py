"""Find `mcpServers`: Claude, Cursor, Windsurf, Cline, Roo Code, Gemini CLI, Qwen Code, Copilot CLI and Continue."""

from collections.abc import Iterator, Mapping
from typing import Any

from toolgate.server.features.mounts.config.imports.foreign_server import (
    COMMON,
    ForeignServer,
    KeyReader,
    as_table,
    read_as,
    read_hidden_tools,
    read_server,
    read_servers,
    read_tools,
)

READERS: Mapping[str, KeyReader] = {
    **COMMON,
    "serverUrl": read_as("url"),  # Windsurf
    "httpUrl": read_as("url"),  # Gemini CLI
    "transport": read_as("type"),
    "transportType": read_as("type"),  # Cline
    "tools": read_tools,  # Copilot CLI
    "includeTools": read_tools,  # Gemini CLI
    "excludeTools": read_hidden_tools,
    "disabledTools": read_hidden_tools,  # Roo Code
}


def find_servers(content: Mapping[str, Any]) -> Iterator[ForeignServer]:
    """Yield the servers of a person, then those of each project (Claude Code)."""
    yield from read_servers(content.get("mcpServers"), READERS)
    for project, settings in as_table(content.get("projects")).items():
        yield from read_servers(as_table(settings).get("mcpServers"), READERS, project)
    earlier = as_table(content.get("experimental")).get("modelContextProtocolServers")  # Continue's config.json
    for entry in earlier if isinstance(earlier, list) else ():
        yield read_server(as_table(entry).get("name", "server"), as_table(entry).get("transport"), READERS)
