"""Send requests to the server being checked, and hold the results of earlier checks."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlunsplit

import msgspec

from toolgate.server.base.errors import UsageError
from toolgate.server.cli.doctor.report import ACCESS_NEEDED, CheckError, CheckSkippedError
from toolgate.server.cli.mcp_client.challenge import parse_challenge
from toolgate.server.cli.mcp_client.client import McpClientError
from toolgate.server.cli.mcp_client.foreign_urls import (
    HostUnknownError,
    PrivateAddressError,
    find_public_address,
    is_public_url,
    is_secure_url,
)
from toolgate.server.cli.mcp_client.http import HttpResponse, get_origin, open_response, parse_url

TIMEOUT = 10.0  # seconds for an answer: hosted platforms wait no longer
FIRST_EVENT_TIMEOUT = 5.0  # seconds of those for a stream's first event
MAX_BODY = 1_048_576  # bytes
ORIGIN = {"Origin": "https://client.example"}  # any page: documents for all origins must answer to it
PUBLIC_URL = "start the server with --public-url set to this address"
PROXY = "check the proxy: it must pass the path, Host and Authorization unchanged"


class ProbeResponse(msgspec.Struct, frozen=True):
    """A response, with the body read."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    version: str = "HTTP/1.1"

    @property
    def is_page(self) -> bool:
        """Return whether it is an HTML page."""
        return self.headers.get("content-type", "").lower().startswith(("text/html", "application/xhtml"))

    @property
    def is_mcp(self) -> bool:
        """Return whether it may answer a message: JSON-RPC, or an event stream."""
        return "jsonrpc" in self.json() or self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def challenge(self) -> dict[str, str]:
        """Return the parameters of WWW-Authenticate."""
        return parse_challenge(self.headers.get("www-authenticate", ""))

    def json(self) -> dict[str, Any]:
        """Return the JSON object in the body, or {}."""
        try:
            found = msgspec.json.decode(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


class HttpProbe:
    """Send requests to `url` and to URLs its server names: https, or http on this machine.

    If `url` is at a public address, only public addresses are asked: hosted clients reach no others, and the server
    being checked must not choose addresses inside this network.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._origin = get_origin(url)
        self._is_public: bool | None = None  # None: not looked up yet

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"", *, clear: bool = False
    ) -> ProbeResponse:
        """Return the response; of a stream, its beginning. `clear` allows http, for requests without secrets.

        Raises CheckError when no answer comes in time.
        """
        given = {"Content-Type": "" if not body else "application/json", "User-Agent": "toolgate-doctor", **headers}
        try:
            if get_origin(parse_url(url).geturl()) != self._origin and not is_secure_url(url) and not clear:
                raise CheckError(f"{url} is not an https URL", PUBLIC_URL)
            async with asyncio.timeout(TIMEOUT):
                address = await self._find_address(url)
                async with open_response(method, url, given, body, address=address) as response:
                    content = await _read_body(method, response)
                    return ProbeResponse(response.status, response.headers, content, response.version)
        except TimeoutError:
            remedy = "hosted clients wait no longer: fix the proxy"
            raise CheckError(f"{url}: no answer in {TIMEOUT:g} s", remedy) from None
        except McpClientError as fault:
            raise CheckError(str(fault), "start the server, and have this address lead to it") from None
        except UsageError:
            raise CheckError(f"{url} is not a usable URL", "look at what answers there") from None

    async def hold_stream(self, url: str, headers: Mapping[str, str], within: float) -> tuple[float | None, int]:
        """Read a stream for `within` seconds. Return when it ended, or None, and how many pieces came.

        Raises CheckError if there is no stream.
        """
        began, pieces = time.monotonic(), 0
        try:
            address = await self._find_address(url)
            async with asyncio.timeout(within), open_response("GET", url, headers, b"", address=address) as response:
                if response.status != 200:
                    raise CheckError(f"a second stream is answered {response.status}", PROXY)
                async for _ in response.body:
                    pieces += 1
        except TimeoutError:
            return None, pieces
        except (McpClientError, UsageError):
            pass
        return time.monotonic() - began, pieces

    async def _find_address(self, url: str) -> str | None:
        """Return the address to connect to, IPv4 first as hosted clients do, or None for any address of the host.
        Raises CheckError."""
        try:
            if self._is_public is None:
                self._is_public = await is_public_url(self._url)
            return await find_public_address(url) if self._is_public else None
        except PrivateAddressError as fault:
            what = f"{url} is not asked for: {fault.address} is {fault.kind}"
            raise CheckError(what, "hosted clients reach only public addresses") from None
        except HostUnknownError as fault:
            raise CheckError(str(fault), "set its A record, or look at what names it") from None

    async def fetch_json(self, url: str, remedy: str) -> tuple[ProbeResponse, dict[str, Any]]:
        """Return the response and its JSON object. Raises CheckError."""
        got = await self.send("GET", url, {"Accept": "application/json", **ORIGIN})
        told = got.json()
        if got.status != 200 or not told:
            what = f"redirects to {got.headers.get('location')}" if 300 <= got.status < 400 else f"answers {got.status}"
            raise CheckError(f"{url} {what if got.status != 200 else 'is not a JSON object'}", remedy)
        return got, told


async def _read_body(method: str, response: HttpResponse) -> bytes:
    content = bytearray()
    if response.is_stream:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_EVENT_TIMEOUT):
                content += await anext(aiter(response.body), b"")
    elif method != "HEAD" and response.status not in (204, 304):
        async for part in response.body:
            content += part
            if len(content) > MAX_BODY:
                break
    return bytes(content)


STATUSES: Mapping[int, str] = {
    403: "the server or the proxy's bot protection refuses: let it through, or look at --allowed-origins",
    404: "paste the URL with /mcp at its end, serve with -t, and have the proxy keep the path",
    405: "serve with -t: a POST has to be answered here",
    421: "the proxy has to pass Host on as it came; or name that host with --allowed-hosts",
    429: "wait a minute; then look at the proxy's limits: hosted platforms share few addresses",
    **dict.fromkeys((502, 503, 504), "start the server, and look at where the proxy sends requests"),
}


def get_list(document: Mapping[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    return value if isinstance(value, list) else []


class RemoteTarget:
    """The server at `url`, with the results of earlier checks."""

    def __init__(self, url: str, token: str) -> None:
        parts = parse_url(url)
        self.url = url if parts.path.strip("/") else urlunsplit((parts.scheme, parts.netloc, "/mcp", "", ""))
        self.parts = parse_url(self.url)
        self.probe = HttpProbe(self.url)
        self.token = token
        self.first_response: ProbeResponse | None = None  # the first response
        self.unauthorized_response: ProbeResponse | None = None  # to a call without a token
        self.is_toolgate = False  # whether the server is a Toolgate
        self.is_private = False  # whether only clients in its network reach it
        self.has_tls_fault = False  # whether no request can be sent, as TLS fails
        self.challenge: dict[str, str] = {}
        self.resource_metadata: dict[str, Any] = {}
        self.issuer = ""
        self.server_metadata: dict[str, Any] = {}
        self.cors_documents: list[tuple[str, ProbeResponse]] = []  # documents that pages of other origins may read
        self.client_id = ""
        self.registration: dict[str, Any] = {}
        self.auth_headers: dict[str, str] = {}  # of the first call that succeeded
        self.session_headers: dict[str, str] = {}  # the same, with those of its session

    @property
    def public_url(self) -> str:
        """Return the public URL that the server must have."""
        return self.url.rstrip("/").removesuffix("/mcp").removesuffix("/sse")

    @property
    def port(self) -> int:
        return self.parts.port or (443 if self.parts.scheme == "https" else 80)

    async def post(self, headers: Mapping[str, str], body: bytes) -> ProbeResponse:
        return await self.probe.send("POST", self.url, headers, body)

    def own_remedy(self, remedy: str) -> str:
        """Return `remedy`, unless an external issuer answered."""
        if get_origin(self.issuer) == get_origin(self.url):
            return remedy
        return f"look at {self.issuer} and its log: that server refuses, not this one"

    def require_https(self, what: str, told: object) -> None:
        """Raise CheckError if a server behind https names an http URL, which others could read."""
        if self.parts.scheme == "https" and isinstance(told, str) and told.startswith("http://"):
            raise CheckError(
                f"{what} is an http URL: {told}",
                f"start the server with --public-url {self.public_url}: it can't see TLS that ends in front of it",
            )

    def require_token(self) -> None:
        """Raise CheckSkippedError without a valid token."""
        if not self.token:
            raise CheckSkippedError(f"not checked: {ACCESS_NEEDED}")
        if not self.auth_headers:
            raise CheckSkippedError("not checked: needs first call")

    def require_session(self) -> None:
        """Raise CheckSkippedError without a session."""
        self.require_token()
        if not self.session_headers:
            raise CheckSkippedError("not checked: needs a session of the first call")
