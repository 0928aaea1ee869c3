"""Find `servers` and `inputs`: VS Code's mcp.json, its settings, and dev containers."""

from collections.abc import Iterator, Mapping
from typing import Any

from toolgate.server.features.mounts.config.imports.foreign_server import (
    COMMON,
    ForeignServer,
    as_table,
    read_servers,
)


def find_servers(content: Mapping[str, Any]) -> Iterator[ForeignServer]:
    container = as_table(as_table(content.get("customizations")).get("vscode"))
    for settings in (content, as_table(content.get("mcp")), as_table(container.get("mcp"))):
        inputs = _read_inputs(settings.get("inputs"))
        for server in read_servers(as_table(settings.get("servers")), COMMON):
            server.inputs = inputs
            yield server


def _read_inputs(value: Any) -> Mapping[str, str]:
    """Return the ids of inputs with their descriptions."""
    inputs = [as_table(each) for each in value] if isinstance(value, list) else []
    return {str(each.get("id")): str(each.get("description") or "") for each in inputs}
