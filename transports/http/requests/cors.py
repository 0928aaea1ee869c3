"""Format the headers that let a browser's pages read an answer. Source: Fetch Standard, "CORS protocol"."""

import re

PREFLIGHT_TIME = b"600"  # seconds a browser may remember a preflight
REQUEST_HEADERS = (
    b"authorization, content-type, accept, last-event-id, mcp-session-id, mcp-protocol-version, mcp-method, mcp-name"
)
RESPONSE_HEADERS = b"mcp-session-id, mcp-protocol-version, www-authenticate, retry-after, x-request-id"
PUBLIC_REQUEST_HEADERS = b"authorization, content-type, accept, mcp-protocol-version"
ANY_ORIGIN = (b"access-control-allow-origin", b"*")
TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 section 5.6.2

HeaderLines = list[tuple[bytes, bytes]]


def allow_origin(origin: bytes) -> HeaderLines:
    """Let pages of one origin read the answer and the protocol's headers in it."""
    return [*_only(origin), (b"access-control-expose-headers", RESPONSE_HEADERS)]


def answer_preflight(origin: bytes, wanted_headers: bytes) -> HeaderLines:
    """Allow one origin the protocol's methods and headers, and the `Mcp-Param-*` headers that it asks for."""
    wanted = (name.strip().lower() for name in wanted_headers.split(b","))
    extra = [name for name in wanted if name.startswith(b"mcp-param-") and TOKEN.fullmatch(name)]
    return [*_only(origin), *_allow(b"GET, POST, DELETE, OPTIONS", b", ".join([REQUEST_HEADERS, *extra]))]


def allow_any_origin(methods: bytes) -> HeaderLines:
    """Let pages of any origin use `methods`: for resources without secrets or cookies."""
    return [ANY_ORIGIN, *_allow(methods, PUBLIC_REQUEST_HEADERS)]


def _only(origin: bytes) -> HeaderLines:
    return [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]


def _allow(methods: bytes, headers: bytes) -> HeaderLines:
    return [
        (b"access-control-allow-methods", methods),
        (b"access-control-allow-headers", headers),
        (b"access-control-max-age", PREFLIGHT_TIME),
    ]
