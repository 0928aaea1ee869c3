"""Send the requests of an OAuth client: bounded, without redirects, to https or this machine only.

The server is not trusted: a server on a public address can't choose addresses inside this network.
"""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import msgspec

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import to_line
from toolgate.server.cli.mcp_client.client import McpClientError
from toolgate.server.cli.mcp_client.foreign_urls import find_public_address, is_public_url, is_secure_url
from toolgate.server.cli.mcp_client.http import get_origin, open_response, parse_url
from toolgate.server.config.types import is_loopback

TIMEOUT = 20.0  # seconds for an answer
MAX_BODY = 256 * 1024  # bytes of a document or a token answer: real ones have a few KiB
MAX_SHOWN = 300  # characters of a server's text in an error
FORM = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}


class LoginError(McpClientError):
    """Signing in, or renewing a token, failed; the text says why."""


class OAuthAnswer(msgspec.Struct, frozen=True):
    """A response with its JSON object, or {}."""

    status: int
    headers: Mapping[str, str]
    json: dict[str, Any]

    @property
    def error(self) -> str:
        """Return OAuth's error with its description, or the status."""
        parts = [self.json.get("error"), self.json.get("error_description")]
        text = ": ".join(part for part in parts if isinstance(part, str))
        return to_line(text, MAX_SHOWN) or f"HTTP {self.status}"


class OAuthRequests:
    """Send requests to the server at `url`, and to the authorization server that it names."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._origin = get_origin(url)
        self._is_public: bool | None = None  # None: not looked up yet

    async def get(self, url: str) -> OAuthAnswer:
        return await self.send("GET", url, {"Accept": "application/json"})

    async def post_form(self, url: str, fields: Mapping[str, str]) -> OAuthAnswer:
        return await self.send("POST", url, FORM, urlencode(fields).encode())

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> OAuthAnswer:
        """Return the response. Raises McpClientError."""
        require_secure(url, "the address")
        own = {"User-Agent": "toolgate-cli", "Content-Type": "", **headers}
        try:
            async with asyncio.timeout(TIMEOUT):
                address = await self._find_address(url)
                async with open_response(method, url, own, body, address=address) as response:
                    content = bytearray()
                    if response.is_stream:  # no answer of OAuth is one, and it may have no end
                        return OAuthAnswer(response.status, response.headers, {})
                    async for part in response.body:
                        content += part
                        if len(content) > MAX_BODY:
                            raise LoginError(f"{url}: the answer is larger than {MAX_BODY // 1024} KiB")
                    return OAuthAnswer(response.status, response.headers, _parse_object(bytes(content)))
        except TimeoutError:
            raise LoginError(f"{url}: no answer in {TIMEOUT:g} s") from None
        except UsageError:
            raise LoginError(f"{to_line(url, MAX_SHOWN)} is not a usable URL") from None

    async def _find_address(self, url: str) -> str | None:
        """Return the address to connect to if the URL is of another origin. Raises McpClientError for an address inside
        this network that a public server names."""
        if self._is_public is None:
            self._is_public = await is_public_url(self._url)
        if not self._is_public or get_origin(url) == self._origin:
            return None
        return await find_public_address(url)


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def require_secure(url: object, what: str, home: str = "") -> str:
    """Return the URL if it is https, or http on this machine. A server at `home` on another machine can't name the
    latter. Raises LoginError."""
    is_far = bool(home) and not is_loopback(get_origin(home)[1])
    if isinstance(url, str) and is_secure_url(url) and not (is_far and url.startswith("http:")):
        return url
    raise LoginError(f"{what} must be an https URL, not {to_line(str(url), MAX_SHOWN)!r}")


def normalize_url(url: str) -> str:
    """Return the URL of the endpoint: https (http on this machine) and /mcp are added where they are missing. Raises
    UsageError."""
    if "://" not in url:
        is_local = is_loopback(urlsplit(f"//{url}").hostname or "")
        url = f"{'http' if is_local else 'https'}://{url}"
    parts = parse_url(url)
    if "@" in parts.netloc:
        raise UsageError("--url: a URL with a name or password in it is not accepted")
    path = parts.path if parts.path.strip("/") else "/mcp"
    return urlunsplit((parts.scheme, parts.netloc.lower(), path, parts.query, ""))
