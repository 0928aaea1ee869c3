"""Read the `_meta` of the stateless era: revision, client and capabilities, which every request carries.

Source: MCP 2026-07-28 basic, "_meta"; versioning, "Protocol Version Negotiation".
"""

from typing import Any

from toolgate.server.protocol.errors import InvalidParams, UnsupportedProtocolVersion
from toolgate.server.protocol.revisions import STATELESS, SUPPORTED
from toolgate.server.protocol.session import LEVELS, Session

PREFIX = "io.modelcontextprotocol/"
VERSION = PREFIX + "protocolVersion"
CAPABILITIES = PREFIX + "clientCapabilities"
CLIENT = PREFIX + "clientInfo"
LOG_LEVEL = PREFIX + "logLevel"
SERVER = PREFIX + "serverInfo"
SUBSCRIPTION = PREFIX + "subscriptionId"
TASKS = PREFIX + "tasks"  # an extension


def is_stateless(meta: dict[str, Any]) -> bool:
    """Return whether `meta` marks a request of the stateless era, valid or not."""
    return VERSION in meta or CAPABILITIES in meta


def client_name(meta: Any) -> str:
    """Return the client's name from `meta`, whatever it is, or ""."""
    client = meta.get(CLIENT) if isinstance(meta, dict) else None
    name = client.get("name") if isinstance(client, dict) else None
    return name if isinstance(name, str) else ""


def check_meta(meta: dict[str, Any]) -> None:
    """Raise InvalidParams if `meta` lacks a required field. The revision is checked later: over HTTP it is first
    compared with the headers."""
    if not (type(meta.get(VERSION)) is str and type(meta.get(CAPABILITIES)) is dict):
        _field(meta, VERSION, str)
        _field(meta, CAPABILITIES, dict)


def refuse_version(version: str, place: str) -> UnsupportedProtocolVersion:
    """Return the error for a revision that is not served; `place` says where the request names it."""
    text = f"{place} is {version[:40]!r}, which is not served; served are {', '.join(SUPPORTED)}"
    return UnsupportedProtocolVersion(text, {"supported": list(SUPPORTED), "requested": version})


def request_session(meta: dict[str, Any], connection: Session) -> Session:
    """Return the session of one request. Raises InvalidParams, UnsupportedProtocolVersion."""
    version = _field(meta, VERSION, str)
    capabilities = _field(meta, CAPABILITIES, dict)
    _field(meta, CLIENT, dict, {})  # optional, but an object
    revision = STATELESS.get(version)
    if revision is None:
        raise refuse_version(version, "the protocol version in '_meta'")
    session = connection.for_request(revision, capabilities, _level(meta))
    session.client = session.client or client_name(meta)
    return session


def _field(meta: dict[str, Any], name: str, kind: type, default: Any = None) -> Any:
    value = meta.get(name, default)
    if not isinstance(value, kind):
        word = "a string" if kind is str else "an object"
        raise InvalidParams(f"'_meta' must have {name!r}, {word}")
    return value


def _level(meta: dict[str, Any]) -> int | None:
    """Return the index of the lowest level the request wants logged, or None."""
    level = meta.get(LOG_LEVEL)
    if level is None:
        return None
    if level not in LEVELS:
        raise InvalidParams(f"{LOG_LEVEL!r} must be one of {', '.join(LEVELS)}")
    return LEVELS.index(level)
