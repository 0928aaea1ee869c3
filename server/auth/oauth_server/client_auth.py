"""Authenticate a client, in exactly one way a request.

Source: RFC 6749 section 2.3, RFC 7523 section 3, RFC 7521 section 4.2.
"""

import base64
import binascii
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

import msgspec

from toolgate.server.auth.login.throttle import UNLIMITED, Backoff, GuessLimiter, Throttle
from toolgate.server.auth.oauth_server.requests import OAuthRequest, OAuthRequestError
from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.jose import InvalidTokenError, JoseKey

ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
LONGEST = 300.0  # seconds an assertion holds, from when it was made: its id must be remembered as long
FARTHEST = 3_600.0  # seconds ahead its end may lie; that is taken for an earlier one, and what says more is refused
MAX_ID = 256  # characters of an assertion's id
# Those of a client that is not right: a program, which is configured once, and tries again by itself when it is not
SECRET = Backoff(free=20, longest=60)
ADDRESS = Backoff(free=50, longest=60)  # where a platform has clients of many people


class TooManyGuessesError(OAuthRequestError):
    """A secret that came too soon after wrong ones: it was not looked at. `wait` is in seconds."""

    def __init__(self, wait: int) -> None:
        super().__init__("too_many_requests")
        self.wait = wait


def secret_guess_limiter() -> GuessLimiter:
    """Return the limiter of guesses at clients' secrets (RFC 6749 section 2.3.1), by client and by address.

    There is no limit for all together: guesses at one client never keep another one out.
    """
    return GuessLimiter(Throttle(), SECRET, ADDRESS, UNLIMITED)


@dataclass(frozen=True, slots=True)
class Credentials:
    """`client` is who it claims to be; `secret` is the secret or the assertion. It prints without."""

    method: str
    client: str
    secret: str

    def __repr__(self) -> str:
        return f"<{self.method} of a client>"


@dataclass(frozen=True, slots=True)
class Assertion:
    """What a verified assertion says. It counts once: `id` is remembered `until` then."""

    claims: Mapping[str, Any]
    id: str
    expires_at: float


def verify_assertion(
    token: str, keys: Sequence[JoseKey], issuer: str, audience: Sequence[str], typ: Collection[str] | None, now: float
) -> Assertion | None:
    """What an assertion says that `issuer` signed, for one of `audience`; None for any other, and for one that has no
    id or can't be remembered as long as it holds. Takes the time of a signature: not for the loop or a transaction."""
    try:
        claims = jose.verify(
            token, keys, typ=typ, algorithms=tuple(jose.ALGORITHMS), issuer=issuer, audience=audience, now=now
        )
    except InvalidTokenError:
        return None
    jti, until = claims.get("jti"), _until(claims, now)
    if not isinstance(jti, str) or not 0 < len(jti) <= MAX_ID or until is None or now >= until:
        return None
    return Assertion(claims, f"{claims['iss']}\n{jti}", until)


def _until(claims: Mapping[str, Any], now: float) -> float | None:
    """Until when an assertion is good, and has to be remembered: RFC 7523 section 3 leaves it to us how long that is.
    Libraries that say an hour are taken, for less. None: it can't be told when it was made, or it says too much."""
    end, issued = claims["exp"], claims.get("iat")
    if end > now + (LONGEST if issued is None else FARTHEST):
        return None
    return float(end if issued is None else min(end, issued + LONGEST)) + jose.LEEWAY


def read_credentials(request: OAuthRequest) -> Credentials:
    """What the request shows. Raises OAuthRequestError for none, more than one, or two clients."""
    form, found = request.form, list[Credentials]()
    header = request.headers.get("authorization", "")
    if header[:6].lower() == "basic ":
        found.append(_basic(header[6:].strip()))
    if "client_assertion" in form or "client_assertion_type" in form:
        if form.get("client_assertion_type") != ASSERTION:
            raise OAuthRequestError("invalid_client", "The type of the client assertion is not known.")
        assertion = form.get("client_assertion", "")
        found.append(Credentials("private_key_jwt", str(read_unverified_claims(assertion).get("sub", "")), assertion))
    if "client_secret" in form:
        found.append(Credentials("client_secret_post", form.get("client_id", ""), form["client_secret"]))
    if not found and "client_id" in form:
        found.append(Credentials("none", form["client_id"], ""))
    if len(found) > 1:
        raise OAuthRequestError("invalid_request", "The client shows who it is in more than one way.")
    if not found or form.get("client_id", found[0].client) != found[0].client:
        raise OAuthRequestError("invalid_client")
    return found[0]


def read_unverified_claims(token: str) -> dict[str, Any]:
    """What a token says, none of it verified: to know whose keys to look for. {} when it can't be read."""
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
