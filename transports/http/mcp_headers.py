"""Compare the headers of a request of the stateless era with its body.

Source: MCP 2026-07-28 basic/transports/streamable-http, "Request Metadata" and "Server Validation".
"""

import base64
import binascii
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from toolgate.server.protocol.errors import HeaderMismatch
from toolgate.server.protocol.messages import Request
from toolgate.server.protocol.request_meta import VERSION
from toolgate.transports.http.asgi import Headers

NUMBER = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")  # 42.0 is 42, too
BEGIN, END = "=?base64?", "?="

# Parameters a tool mirrors into headers: header name after `mcp-param-`, in lower case → path of the property
Mirrored = Mapping[str, tuple[str, ...]]


def check_headers(headers: Headers, request: Request, name_parameter: str | None, mirrored: Mirrored) -> None:
    """Raise HeaderMismatch when a header that must be there is not, or says something else than the body. Mcp-Name
    repeats the parameter `name_parameter`."""
    meta = request.params.get("_meta") or {}
    _check_equal(headers, b"mcp-protocol-version", meta.get(VERSION), "MCP-Protocol-Version")
    _check_equal(headers, b"mcp-method", request.method, "Mcp-Method")
    if name_parameter is not None:
        _check_equal(headers, b"mcp-name", request.params.get(name_parameter), "Mcp-Name", encoded=True)
    for name, path in mirrored.items():
        _check_mirrored(headers, name, _argument_at(request.params.get("arguments"), path))


def decode_value(value: str) -> str:
    """A header's value as it was meant: `=?base64?…?=` is UTF-8 in base64. Raises HeaderMismatch."""
    if not (value.startswith(BEGIN) and value.endswith(END) and len(value) >= len(BEGIN) + len(END)):
        return value
    try:
        return base64.b64decode(value[len(BEGIN) : -len(END)].encode("ascii"), validate=True).decode()
    except (binascii.Error, ValueError):
        raise HeaderMismatch("a header has base64 that is none") from None


def _check_equal(headers: Headers, name: bytes, wanted: Any, title: str, *, encoded: bool = False) -> None:
    given = headers.get(name)
    if given is None:
        raise HeaderMismatch(f"the {title} header is missing")
    if isinstance(wanted, str) and given == wanted.encode() and given.isascii() and not given.startswith(b"=?"):
        return  # nearly always; what is encoded, padded or not ASCII is looked at below
    value = _read_text(given, title)
    if (decode_value(value) if encoded else value) != wanted:
        raise HeaderMismatch(f"the {title} header does not match the body")


def _check_mirrored(headers: Headers, name: str, value: Any) -> None:
    """A parameter that is there must be mirrored, one that is not must not be."""
    title = f"Mcp-Param-{name}"
    given = headers.get(b"mcp-param-" + name.encode())
    if value is None:
        if given is not None:
            raise HeaderMismatch(f"the {title} header mirrors no argument")
        return
    if given is None:
        raise HeaderMismatch(f"the {title} header is missing")
    said = decode_value(_read_text(given, title))
    if isinstance(value, bool):
        same = said == ("true" if value else "false")
    elif isinstance(value, (int, float)):
        same = NUMBER.fullmatch(said) is not None and Decimal(said) == value
    else:
        same = said == value
    if not same:
        raise HeaderMismatch(f"the {title} header does not match the body")


def _read_text(given: bytes, title: str) -> str:
    """Visible ASCII, spaces and tabs; the white space around it is not part of it (RFC 9110 section 5.5)."""
    value = given.strip(b" \t").decode("latin-1")
    if not (value.isascii() and value.replace("\t", " ").isprintable()):
        raise HeaderMismatch(f"the {title} header has characters that no header may have")
    return value


def _argument_at(arguments: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        if not isinstance(arguments, dict):
            return None
        arguments = arguments.get(step)
    return arguments
