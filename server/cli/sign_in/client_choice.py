"""Choose the OAuth client of a sign-in: the one given, the one of the last sign-in, or a new one (RFC 7591).

A registered client is used with the port that it was registered with: not every server takes another (RFC 8252
section 7.3).
"""

import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from toolgate.server.cli.sign_in.credentials import SignIn
from toolgate.server.cli.sign_in.discovery import IssuerMetadata
from toolgate.server.cli.sign_in.requests import LoginError, OAuthRequests

CLIENT_NAME = "toolgate command line"
HOW_TO_REGISTER = "have its operator run: toolgate client add NAME http://127.0.0.1/callback, and give --client ID"
CLIENT_UNKNOWN = ("invalid_client", "unauthorized_client")  # errors for a client that the server no longer knows
MAX_ID = 2_000  # characters of a client's id


class ChosenClient(msgspec.Struct, frozen=True):
    """A client's id, and the port of its redirect URI; 0 for any."""

    id: str
    port: int = 0


def find_port(server: IssuerMetadata, earlier: SignIn | None) -> int:
    """Return the port at which the client of the earlier sign-in can be used, or 0."""
    return earlier.redirect_port if earlier is not None and earlier.issuer == server.issuer else 0


async def choose_client(
    requests: OAuthRequests, server: IssuerMetadata, redirect_uri: str, named_id: str | None, earlier: SignIn | None
) -> ChosenClient:
    """Return the client to sign in with. `named_id` is the id that the person names. Raises LoginError."""
    if named_id is not None:
        if named_id.startswith("https://") and not server.takes_documents:
            raise LoginError(f"{server.issuer} takes no URL as a client's id: leave out --client {named_id}")
        return ChosenClient(named_id)
    port = urlsplit(redirect_uri).port or 0
    if (
        earlier is not None
        and earlier.issuer == server.issuer
        and earlier.redirect_port in (0, port)
        and await _is_known(requests, server, earlier, redirect_uri)
    ):
        return ChosenClient(earlier.client_id, earlier.redirect_port)
    return ChosenClient(await _register(requests, server, redirect_uri), port)


async def _is_known(requests: OAuthRequests, server: IssuerMetadata, earlier: SignIn, redirect_uri: str) -> bool:
    """Return whether the server still knows a client.

    The token endpoint is asked with an invalid code: the sign-in page would show the error to the person alone.
    """
    fields = {"grant_type": "authorization_code", "code": secrets.token_urlsafe(32), "redirect_uri": redirect_uri}
    fields |= {"client_id": earlier.client_id, "code_verifier": secrets.token_urlsafe(48), "resource": earlier.url}
    answer = await requests.post_form(server.token_endpoint, fields)
    return answer.json.get("error") not in CLIENT_UNKNOWN


async def _register(requests: OAuthRequests, server: IssuerMetadata, redirect_uri: str) -> str:
    """Register a client, and return its id. Raises LoginError."""
    if not server.registration_endpoint:
        raise LoginError(f"{server.issuer} registers no clients: {HOW_TO_REGISTER}")
    client = {"client_name": CLIENT_NAME, "redirect_uris": [redirect_uri], "application_type": "native"}
    return str((await register_client(requests, server, client, HOW_TO_REGISTER))["client_id"])


async def register_client(
    requests: OAuthRequests, server: IssuerMetadata, client: Mapping[str, Any], remedy: str
) -> dict[str, Any]:
    """Register a client without a secret, and return what the server says of it, with a usable `client_id`. `remedy`
    is said with a refusal. Raises LoginError."""
    asked = {
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        **client,
    }
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    answer = await requests.send("POST", server.registration_endpoint, headers, msgspec.json.encode(asked))
    if answer.status not in (200, 201):
        raise LoginError(f"{server.registration_endpoint} refuses: {answer.error}; {remedy}")
    id = answer.json.get("client_id")
    if not isinstance(id, str) or not 0 < len(id) <= MAX_ID or not id.isascii() or not id.isprintable():
        raise LoginError(f"{server.registration_endpoint} gives no usable client id; {remedy}")
    return answer.json
