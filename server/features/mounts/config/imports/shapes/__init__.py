"""Find the servers in the files of other clients: a file for each place where they stand.

Each has `find_servers(content)`, and `SHAPES` lists these.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from toolgate.server.features.mounts.config.imports.foreign_server import ForeignServer
from toolgate.server.features.mounts.config.imports.shapes import codex, goose, mcp_servers, opencode, vscode, zed

SHAPES: Mapping[str, Callable[[Mapping[str, Any]], Iterator[ForeignServer]]] = {  # by the key that they read
    "mcpServers": mcp_servers.find_servers,
    "servers": vscode.find_servers,
    "context_servers": zed.find_servers,
    "mcp_servers": codex.find_servers,
    "mcp": opencode.find_servers,
    "extensions": goose.find_servers,
}
