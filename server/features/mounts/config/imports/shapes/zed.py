"""Find `context_servers`: Zed, with a command of its own object in earlier versions."""

from collections.abc import Iterator, Mapping
from typing import Any

from toolgate.server.features.mounts.config.imports.foreign_server import (
    COMMON,
    ForeignServer,
    KeyReader,
    read_servers,
)


def _read_command(server: ForeignServer, value: Any) -> None:
    """Take over a command, or the object that earlier versions have."""
    if isinstance(value, dict):
        server.rows |= {"command" if key == "path" else key: each for key, each in value.items() if key in OF_COMMAND}
        server.skipped += [f"command.{key}" for key in value if key not in OF_COMMAND]
    else:
        server.rows["command"] = value


def _read_settings(server: ForeignServer, value: Any) -> None:
    if value:
        server.skipped.append("settings")


OF_COMMAND = ("path", "args", "env")
READERS: Mapping[str, KeyReader] = {**COMMON, "command": _read_command, "settings": _read_settings}


def find_servers(content: Mapping[str, Any]) -> Iterator[ForeignServer]:
    yield from read_servers(content.get("context_servers"), READERS)
