"""Authenticate the client of a request, in exactly one way.

Source: RFC 6749 section 2.3, RFC 7523 section 3, RFC 7521 section 4.2.
"""

import base64
import binascii
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import unquote_plus

import msgspec

from toolgate.server.auth.login.throttle import UNLIMITED, Backoff, GuessLimiter
from toolgate.server.auth.oauth_server.requests import OAuthRequest, OAuthRequestError
from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.jose import InvalidTokenError, JoseKey
from toolgate.server.base.bus.bus import Counters
from toolgate.server.base.bus.memory_keys import MAX_COUNTERS, MemoryKeys

ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
LONGEST = 300.0  # seconds an assertion is valid from its issue: its id is stored as long
FARTHEST = 3_600.0  # seconds ahead its expiry may lie; it is then shortened, and beyond that it is refused
MAX_ID = 256  # characters of an assertion's id
# For a client's secret: a program is configured once, and retries by itself if it is wrong
SECRET = Backoff(free=20, longest=60)
ADDRESS = Backoff(free=50, longest=60)  # a platform may have clients of many people at one address


class TooManyGuessesError(OAuthRequestError):
    """A secret came too soon after wrong ones and was not checked. `wait` is in seconds."""

    def __init__(self, wait: int) -> None:
        super().__init__("too_many_requests")
        self.wait = wait


def limit_secret_guesses(counters: Counters | None = None) -> GuessLimiter:
    """Return the limiter of guesses at clients' secrets (RFC 6749 section 2.3.1), by client and by address.

    There is no common limit: guesses at one client never lock out another.
    """
    counters = counters if counters is not None else MemoryKeys(most=MAX_COUNTERS)
    return GuessLimiter(counters, SECRET, ADDRESS, UNLIMITED, kind="client ")


class Credentials(msgspec.Struct, frozen=True):
    """The credentials of a request. `client` is the claimed id; `secret` is the secret or the assertion, and not in
    `repr`."""

    method: str
    client: str
    secret: str

    def __repr__(self) -> str:
        return f"<{self.method} of a client>"


class Assertion(msgspec.Struct, frozen=True):
    """A verified assertion. It is accepted once: its `id` is stored until `expires_at`."""

    claims: Mapping[str, Any]
    id: str
    expires_at: float


def verify_assertion(
    token: str, keys: Sequence[JoseKey], issuer: str, audience: Sequence[str], typ: Collection[str] | None, now: float
) -> Assertion | None:
    """Return the assertion that `issuer` signed for one of `audience`. Returns None for any other, and for one without
    id or with too long a validity. Verifies a signature: not for the event loop or a transaction."""
    try:
        algorithms = jose.ALGORITHMS
        claims = jose.verify(token, keys, typ=typ, algorithms=algorithms, issuer=issuer, audience=audience, now=now)
    except InvalidTokenError:
        return None
    jti, until = claims.get("jti"), _until(claims, now)
    if not isinstance(jti, str) or not 0 < len(jti) <= MAX_ID or until is None or now >= until:
        return None
    return Assertion(claims, f"{claims['iss']}\n{jti}", until)


def _until(claims: Mapping[str, Any], now: float) -> float | None:
    """Return when an assertion expires, until when its id must be stored, or None if that is too far ahead.

    RFC 7523 section 3 leaves the limit to us: `LONGEST` after the time of issue. An assertion that claims an hour, as
    some libraries write it, is accepted and expires earlier.
    """
    end, issued = claims["exp"], claims.get("iat")
    if end > now + (LONGEST if issued is None else FARTHEST):
        return None
    return float(end if issued is None else min(end, issued + LONGEST)) + jose.LEEWAY


def read_credentials(request: OAuthRequest) -> Credentials:
    """Return the request's credentials. Raises OAuthRequestError for none, more than one, or two clients."""
    form, proofs = request.form, list[Credentials]()
    header = request.headers.get("authorization", "")
    if header[:6].lower() == "basic ":
        proofs.append(_basic(header[6:].strip()))
    if "client_assertion" in form or "client_assertion_type" in form:
        if form.get("client_assertion_type") != ASSERTION:
            raise OAuthRequestError("invalid_client", "The client_assertion_type is not supported.")
        assertion = form.get("client_assertion", "")
        proofs.append(Credentials("private_key_jwt", str(read_unverified_claims(assertion).get("sub", "")), assertion))
    if "client_secret" in form:
        proofs.append(Credentials("client_secret_post", form.get("client_id", ""), form["client_secret"]))
    if not proofs and "client_id" in form:
        proofs.append(Credentials("none", form["client_id"], ""))
    if len(proofs) > 1:
        raise OAuthRequestError("invalid_request", "The client used more than one authentication method.")
    if not proofs or form.get("client_id", proofs[0].client) != proofs[0].client:
        raise OAuthRequestError("invalid_client")
    return proofs[0]


def read_unverified_claims(token: str) -> dict[str, Any]:
    """Return a token's claims without verifying them, to find the issuer's keys; {} if they can't be read."""
    if len(token) > jose.MAX_TOKEN or token.count(".") != 2:
        return {}
    payload = token.split(".")[1]
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, RecursionError, binascii.Error):
        return {}
    return claims if isinstance(claims, dict) else {}


def _basic(encoded: str) -> Credentials:
    try:
        client, colon, secret = base64.b64decode(encoded, validate=True).decode().partition(":")
        client, secret = unquote_plus(client, errors="strict"), unquote_plus(secret, errors="strict")
    except ValueError:
        raise OAuthRequestError("invalid_client") from None
    if not (client and colon and secret):
        raise OAuthRequestError("invalid_client")
    return Credentials("client_secret_basic", client, secret)
