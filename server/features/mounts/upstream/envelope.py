"""Write what every request of the stateless era repeats: its `_meta`, and over HTTP its headers.

Source: MCP 2026-07-28 basic, "_meta"; basic/transports.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from toolgate.server.base.version import VERSION as TOOLGATE_VERSION
from toolgate.server.protocol.header_values import encode_header
from toolgate.server.protocol.request_meta import CAPABILITIES, CLIENT, LOG_LEVEL, VERSION
from toolgate.tools.api.arguments import get_at

IDENTITY = {"name": "toolgate", "title": "Toolgate", "version": TOOLGATE_VERSION}
CONNECTION_OWNED = frozenset((VERSION, CLIENT, CAPABILITIES, LOG_LEVEL, "progressToken"))


def create_envelope(revision: str, capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `_meta` of a request."""
    return {VERSION: revision, CAPABILITIES: capabilities, CLIENT: IDENTITY}


def list_headers(method: str, params: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that repeat a request."""
    name = params.get("name") or params.get("uri") or params.get("taskId")
    return {"Mcp-Method": method, **({"Mcp-Name": encode_header(name)} if isinstance(name, str) else {})}


def repeat_arguments(arguments: Mapping[str, Any], mirrored: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the headers that repeat arguments. `mirrored`: header name after `Mcp-Param-` → path of the argument."""
    if not mirrored:
        return {}
    given = {name: get_at(arguments, path) for name, path in mirrored.items()}
    return {f"Mcp-Param-{name}": _format_argument(value) for name, value in given.items() if value is not None}


def _format_argument(value: Any) -> str:
    return encode_header(value) if isinstance(value, str) else msgspec.json.encode(value).decode()


def strip_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's `_meta` without what belongs to its connection with us."""
    return {name: value for name, value in meta.items() if name not in CONNECTION_OWNED}
