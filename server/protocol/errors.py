"""Define the protocol's errors, one class for each code. Knows nothing of tools: their refusals are results.

    RpcError                                 the request was wrong, or the server failed
    ├── ParseError                   -32700  not JSON, or not UTF-8
    ├── InvalidRequest               -32600  JSON, but no request that is valid here and now
    ├── MethodNotFound               -32601
    ├── InvalidParams                -32602  also: unknown tool, missing `_meta` field, invalid `requestState`
    ├── InternalError                -32603  a bug; carries a reference to the log
    ├── ResourceNotFound             -32002  up to 2025-11-25; -32602 since
    ├── HeaderMismatch               -32020  2026-07-28: HTTP headers and body disagree
    ├── MissingClientCapability      -32021  2026-07-28: `data.requiredCapabilities`
    ├── UnsupportedProtocolVersion   -32022  2026-07-28: `data.supported`, `data.requested`
    └── UrlElicitationRequired       -32042  2025-11-25 alone: `data.elicitations`

Source: JSON-RPC 2.0 section 5.1; MCP 2026-07-28 basic, "Error Codes".
"""

from typing import Any

MAX_SHOWN = 160  # characters of a client's text that an error repeats


class RpcError(Exception):
    """A refusal that goes to the client as a JSON-RPC error object. Messages are lower case and name the thing."""

    code = -32603

    def __init__(self, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.data = data


class ParseError(RpcError):
    code = -32700


class InvalidRequest(RpcError):
    code = -32600


class MethodNotFound(RpcError):
    code = -32601


class InvalidParams(RpcError):
    code = -32602


class InternalError(RpcError):
    code = -32603


class ResourceNotFound(RpcError):
    code = -32002


class HeaderMismatch(RpcError):
    code = -32020


class MissingClientCapability(RpcError):
    code = -32021


class UnsupportedProtocolVersion(RpcError):
    code = -32022


class UrlElicitationRequired(RpcError):
    code = -32042


def format_name(value: Any) -> str:
    """Return a client's name for an error message, cut before it is quoted."""
    if isinstance(value, str):
        return repr(value[:MAX_SHOWN])
    if value is None:
        return "none is named"
    return "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)[:MAX_SHOWN]
