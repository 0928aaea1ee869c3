"""Ask a token endpoint for tokens, and have them revoked.

Source: RFC 6749, RFC 7009, RFC 8707; MCP 2026-07-28 basic/authorization.
"""

import base64
import secrets
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from msgspec.structs import replace

from toolgate.server.cli.mcp_client.client import McpClientError
from toolgate.server.cli.mcp_client.foreign_urls import HostUnknownError, PrivateAddressError
from toolgate.server.cli.mcp_client.http import ServerUnreachableError
from toolgate.server.cli.sign_in.requests import FORM, OAuthAnswer, OAuthRequests
from toolgate.server.features.mounts.sign_in.store import FarClient, SignedIn, SignInFault

BASIC, POST, NONE = "client_secret_basic", "client_secret_post", "none"
EARLY, SHARE = 30.0, 0.2  # a token is refreshed so many seconds before its end, or at this share of its life
SHORTEST = 1.0  # seconds that each token is used, whatever is said of it
MAX_DIGITS = 12  # of a number that is written as a text
BUSY = (429, 503)
LATER = ("temporarily_unavailable", "slow_down")
CLIENT_UNKNOWN = ("invalid_client", "unauthorized_client")
MAX_TOKEN = 16_384  # characters
ENDED = ("invalid_grant", "invalid_client", "unauthorized_client", "invalid_scope", "invalid_target")


class NotSentError(SignInFault):
    """The request did not reach the server, or was not looked at: it can be made again."""


class RefusedError(SignInFault):
    """The server has refused the grant for good. `error`: its code, such as invalid_grant."""

    def __init__(self, text: str, error: str) -> None:
        super().__init__(text)
        self.error = error

    @property
    def is_client(self) -> bool:
        """Whether the server does not know the client."""
        return self.error in CLIENT_UNKNOWN


async def redeem_code(
    requests: OAuthRequests, granted: SignedIn, code: str, redirect_uri: str, verifier: str
) -> tuple[SignedIn, float | None]:
    """Return the tokens for a code, and in how many seconds they are to be refreshed. Raises SignInFault."""
    fields = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri, "code_verifier": verifier}
    return _read_tokens(await _ask(requests, granted, fields), granted)


async def refresh(requests: OAuthRequests, signed_in: SignedIn) -> tuple[SignedIn, float | None]:
    """Return new tokens, and in how many seconds they are to be refreshed. Raises NotSentError, RefusedError, and
    SignInFault where nobody knows what became of it."""
    fields = {"grant_type": "refresh_token", "refresh_token": signed_in.refresh_token}
    return _read_tokens(await _ask(requests, signed_in, fields), signed_in)


async def is_known(requests: OAuthRequests, granted: SignedIn, redirect_uri: str) -> bool:
    """Return whether the server may still know a client: its page would say so to the person alone. One that answers
    anything else to a wrong code knows it."""
    code = secrets.token_urlsafe(32)
    try:
        await redeem_code(requests, granted, code, redirect_uri, secrets.token_urlsafe(48))
    except RefusedError as error:
        return not error.is_client
    except SignInFault:
        pass
    return True


async def revoke(requests: OAuthRequests, signed_in: SignedIn) -> bool:
    """Revoke the tokens where the server can. Return whether it has."""
    if not signed_in.revocation_endpoint:
        return False
    fields = {"token": signed_in.refresh_token or signed_in.access_token}
    try:
        answer = await _send(requests, signed_in.revocation_endpoint, signed_in.client, fields)
    except McpClientError:
        return False
    return answer.status == 200


async def _ask(requests: OAuthRequests, signed_in: SignedIn, fields: Mapping[str, str]) -> OAuthAnswer:
    asked = {**fields, **({"resource": signed_in.resource} if signed_in.resource else {})}
    return await ask_endpoint(requests, signed_in.token_endpoint, signed_in.client, asked)


async def ask_endpoint(requests: OAuthRequests, url: str, client: FarClient, fields: Mapping[str, str]) -> OAuthAnswer:
    """Return what a token endpoint answers to a form. Raises SignInFault."""
    try:
        return await _send(requests, url, client, fields)
    except (ServerUnreachableError, HostUnknownError, PrivateAddressError) as error:
        raise NotSentError(str(error)) from None
    except McpClientError as error:
        raise SignInFault(str(error)) from None


async def _send(requests: OAuthRequests, url: str, client: FarClient, fields: Mapping[str, str]) -> OAuthAnswer:
    """Send a form as a client. Raises McpClientError."""
    headers = dict(FORM)
    if client.secret and client.method == BASIC:
        headers["Authorization"] = f"Basic {encode_basic(client.id, client.secret)}"
    else:
        fields = {**fields, "client_id": client.id, **({"client_secret": client.secret} if client.secret else {})}
    return await requests.send("POST", url, headers, urlencode(fields).encode())


def encode_basic(id: str, secret: str) -> str:
    """Return how a client shows its secret in the header (RFC 6749 section 2.3.1)."""
    return base64.b64encode(f"{quote(id, safe='')}:{quote(secret, safe='')}".encode()).decode()


def choose_method(secret: str, methods: Sequence[str]) -> str:
    """Return how a client shows its secret to a server whose metadata name these methods: by the first of them, since
    not every server can do all that it names."""
    if not secret:
        return NONE
    shown = [method for method in methods or (BASIC,) if method in (BASIC, POST)]  # RFC 8414 section 2
    return shown[0] if shown else POST


def choose_registered_method(methods: Sequence[str]) -> str:
    """Return how a client that registers itself shows who it is: without a secret where the server may take that."""
    return NONE if not methods or NONE in methods else choose_method("any", methods)


def _read_tokens(answer: OAuthAnswer, before: SignedIn) -> tuple[SignedIn, float | None]:
    """Raises SignInFault for an answer without a usable token."""
    access = read_bearer(answer)
    again, scope = answer.json.get("refresh_token"), answer.json.get("scope")
    signed_in = replace(
        before,
        access_token=access,
        refresh_token=again if is_token(again) else before.refresh_token,
        scope=scope if isinstance(scope, str) and scope else before.scope,
    )
    lasts = read_lifetime(answer)
    return signed_in, None if lasts is None else shorten(lasts)


def read_bearer(answer: OAuthAnswer) -> str:
    """Return the access token of an answer. Raises SignInFault."""
    check_success(answer)
    access, kind = answer.json.get("access_token"), answer.json.get("token_type")
    if not is_token(access) or not isinstance(kind, str) or kind.lower() != "bearer":
        raise SignInFault("it sent no bearer token")
    return str(access)


def check_success(answer: OAuthAnswer) -> None:
    """Raises SignInFault for an answer that is an error."""
    error = answer.json.get("error")
    if answer.status in BUSY or (answer.status != 200 and error in LATER):
        raise NotSentError(f"it is busy: {answer.error}")
    if answer.status != 200 and error in ENDED:
        raise RefusedError(f"it says {answer.error}", str(error))
    if answer.status != 200:
        raise SignInFault(f"it refuses: {answer.error}")


def read_lifetime(answer: OAuthAnswer) -> float | None:
    """Return how many seconds the token of an answer lasts, or None: its server does not say."""
    lasts = answer.json.get("expires_in")
    if isinstance(lasts, str) and len(lasts) <= MAX_DIGITS and lasts.isdecimal():
        lasts = int(lasts)
    if isinstance(lasts, bool) or not isinstance(lasts, (int, float)) or not 0 < lasts < 2**31:
        return None
    return lasts


def shorten(seconds: float) -> float:
    """Return how long a token is used that lasts so long."""
    return max(SHORTEST, seconds - min(EARLY, SHARE * seconds))


def is_token(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_TOKEN and value.isascii() and value.isprintable()
