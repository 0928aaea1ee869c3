"""Find the authorization server of an MCP server, from its 401 on.

Source: MCP 2026-07-28 basic/authorization, RFC 9728, RFC 8414.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from toolgate.server.base.text import to_line
from toolgate.server.cli.mcp_client.challenge import parse_challenge
from toolgate.server.cli.mcp_client.client import initialize_params
from toolgate.server.cli.mcp_client.http import get_origin
from toolgate.server.cli.sign_in.requests import LoginError, OAuthRequests, require_secure
from toolgate.server.protocol.revisions import NEWEST_WITH_SESSION

INITIALIZE = msgspec.json.encode(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": initialize_params(NEWEST_WITH_SESSION.name, can_answer=False),
    }
)
MESSAGE = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,128}")  # RFC 6749 section 3.3
MAX_SCOPES = 50


class IssuerMetadata(msgspec.Struct, frozen=True):
    """What a client needs to know of an authorization server. Endpoints are "" if the server has none."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str
    revocation_endpoint: str
    sends_issuer: bool  # in each redirect (RFC 9207)
    takes_documents: bool  # a client's id may be the URL of its metadata
    scopes: tuple[str, ...] = ()  # that it names, of all its resources
    auth_methods: tuple[str, ...] = ()  # by which a client with a secret shows it at the token endpoint


class FoundServer(msgspec.Struct, frozen=True):
    """Where to sign in for an MCP server, the scopes to ask for, and what it calls itself."""

    server: IssuerMetadata
    scopes: list[str]
    resource: str


async def discover(requests: OAuthRequests, url: str) -> tuple[IssuerMetadata, list[str]]:
    """Return the authorization server of the MCP server at `url`, and the scopes to ask for. Raises LoginError."""
    answer = await requests.send("POST", url, MESSAGE, INITIALIZE)
    if answer.status == 200:
        raise LoginError(f"{url} answers without a token: nobody has to sign in there")
    if answer.status != 401:
        raise LoginError(
            f"{url} answers {answer.status}, not 401: paste the URL of the MCP server, with /mcp at its end"
        )
    found = await discover_by(requests, url, parse_challenge(answer.headers.get("www-authenticate", "")))
    return found.server, found.scopes


async def discover_by(
    requests: OAuthRequests,
    url: str,
    challenge: Mapping[str, str],
    *,
    needs_page: bool = True,
    remedy: str = "paste that URL, if you trust it",
) -> FoundServer:
    """Return where to sign in for the MCP server at `url`, whose challenge, or {}, says more. `needs_page`: a person
    signs in there with a browser. `remedy` is said of a server that calls itself something else. Raises LoginError."""
    resource = await _find_resource(requests, url, challenge.get("resource_metadata"))
    if not _is_of(resource, url):
        raise LoginError(f"{url} calls itself {to_line(str(resource.get('resource')), 200)}: {remedy}")
    servers = resource.get("authorization_servers")
    if not isinstance(servers, list) or not servers:
        raise LoginError(f"{url} names no authorization server")
    issuer = require_secure(servers[0], "the authorization server", url)
    scopes = challenge.get("scope", "").strip() or resource.get("scopes_supported")
    return FoundServer(await _find_server(requests, issuer, needs_page), read_scopes(scopes), resource["resource"])


async def _find_resource(requests: OAuthRequests, url: str, metadata_url: str | None) -> dict[str, Any]:
    """Return the metadata of the resource: where the challenge says, below the path, or at the root. Raises
    LoginError."""
    parts = urlsplit(url)
    root = f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource"
    places = list(dict.fromkeys((root + parts.path.rstrip("/"), root)))
    if metadata_url is not None:
        place = require_secure(metadata_url, "the metadata of the resource")
        if get_origin(place) != get_origin(url):
            raise LoginError(f"{url} names metadata of another origin, {to_line(place, 200)}")
        places = [place]
    statuses: list[int] = []
    for place in places:
        answer = await requests.get(place)
        if answer.status == 200 and answer.json:
            return answer.json
        statuses.append(answer.status)
    told = f"{places[0]} answers {statuses[0]} without metadata"
    raise LoginError(f"{told}: the server does not say how to sign in")


def _is_of(metadata: Mapping[str, Any], url: str) -> bool:
    """Return whether metadata are of what answers at the URL: itself, or a path above it (RFC 9728 section 3.3)."""
    resource = metadata.get("resource")
    if not isinstance(resource, str):
        return False
    whole, part = url.rstrip("/"), resource.rstrip("/")
    return whole == part or (whole.startswith(f"{part}/") and urlsplit(part).netloc == urlsplit(whole).netloc)


async def _find_server(requests: OAuthRequests, issuer: str, needs_page: bool) -> IssuerMetadata:
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    known = ("oauth-authorization-server", "openid-configuration")
    places = [f"{origin}/.well-known/{name}{path}" for name in known]
    places += [f"{origin}{path}/.well-known/openid-configuration"] if path else []
    for place in places:
        answer = await requests.get(place)
        if answer.status == 200 and answer.json:
            return _parse_server(answer.json, issuer, needs_page)
    raise LoginError(f"{issuer} has no metadata of an authorization server")


def _parse_server(metadata: dict[str, Any], issuer: str, needs_page: bool) -> IssuerMetadata:
    """Check the metadata (RFC 8414 section 3.3). The issuer is the one that they name."""
    named = metadata.get("issuer")
    if not isinstance(named, str) or named not in list_spellings(issuer):
        raise LoginError(f"the metadata of {issuer} are of {to_line(str(named), 200)}: refused")
    methods = metadata.get("code_challenge_methods_supported")
    if needs_page and (not isinstance(methods, list) or "S256" not in methods):
        raise LoginError(f"{issuer} does not support PKCE with S256, which keeps others from using your sign-in")
    optional = {
        name: require_secure(metadata[name], name, issuer) if metadata.get(name) is not None else ""
        for name in ("registration_endpoint", "revocation_endpoint")
    }
    return IssuerMetadata(
        named,
        require_secure(metadata.get("authorization_endpoint"), "authorization_endpoint", issuer) if needs_page else "",
        require_secure(metadata.get("token_endpoint"), "token_endpoint", issuer),
        **optional,
        sends_issuer=metadata.get("authorization_response_iss_parameter_supported") is True,
        takes_documents=metadata.get("client_id_metadata_document_supported") is True,
        scopes=_read_words(metadata.get("scopes_supported")),
        auth_methods=_read_words(metadata.get("token_endpoint_auth_methods_supported")),
    )


def list_spellings(issuer: str) -> list[str]:
    """Return an issuer, and the same one with or without a slash as its whole path (RFC 3986 section 6.2.3): libraries
    add that to what they serve, and servers do not have it in their metadata."""
    parts = urlsplit(issuer)
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        return [issuer]
    origin = issuer.removesuffix("/")
    return [origin, f"{origin}/"]


def read_scopes(value: object) -> list[str]:
    """Return the first valid scopes of a list, or of a text with spaces."""
    words = value.split() if isinstance(value, str) else _read_words(value)
    return [word for word in words if SCOPE.fullmatch(word)][:MAX_SCOPES]


def _read_words(value: object) -> tuple[str, ...]:
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()
