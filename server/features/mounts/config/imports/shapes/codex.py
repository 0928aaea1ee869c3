"""Find `mcp_servers`: Codex' TOML, which names variables in keys of their own."""

from collections.abc import Iterator, Mapping
from typing import Any

from toolgate.server.features.mounts.config.imports.foreign_server import (
    COMMON,
    ForeignServer,
    KeyReader,
    as_table,
    read_as,
    read_forwarded,
    read_hidden_tools,
    read_servers,
    read_tools,
)


def _read_headers(server: ForeignServer, value: Any) -> None:
    server.rows["headers"] = {**as_table(server.rows.get("headers")), **as_table(value)}


def _read_header_variables(server: ForeignServer, value: Any) -> None:
    _read_headers(server, {name: f"${{env:{variable}}}" for name, variable in as_table(value).items()})


def _read_token_variable(server: ForeignServer, value: Any) -> None:
    _read_headers(server, {"Authorization": f"Bearer ${{env:{value}}}"})


def _read_env(server: ForeignServer, value: Any) -> None:
    server.rows["env"] = {**as_table(server.rows.get("env")), **as_table(value)}


READERS: Mapping[str, KeyReader] = {
    **COMMON,
    "env": _read_env,
    "env_vars": read_forwarded,
    "http_headers": _read_headers,
    "env_http_headers": _read_header_variables,
    "bearer_token_env_var": _read_token_variable,
    "tool_timeout_sec": read_as("timeout"),
    "enabled_tools": read_tools,
    "disabled_tools": read_hidden_tools,
}


def find_servers(content: Mapping[str, Any]) -> Iterator[ForeignServer]:
    yield from read_servers(content.get("mcp_servers"), READERS)
