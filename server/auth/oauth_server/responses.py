"""What the authorization server answers: a redirect, an error page, or JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolgate.server.auth.oauth_server.advice import Advice

FormPairs = list[tuple[str, str]]  # the pairs of a urlencoded body, in order, repeated ones too
NO_STORE = {"Cache-Control": "no-store", "Pragma": "no-cache"}  # RFC 6749 section 5.1


@dataclass(frozen=True, slots=True)
class Redirect:
    """Send the browser to `location` (302; 303 after a POST). It carries `iss`, and `state` where one came.

    `host`: where that is, to be named on a page first, with what is wrong: else any client that registers could send
    people on from here by a link. "" where a person has answered, or the operator vouches for the client.
    """

    location: str
    host: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class AuthorizationErrorPage:
    """Show a page and redirect nowhere: who asks, or where the answer would go, can't be trusted.

    `document`: the URL of the metadata document that the client named, where that is at fault; `advice`: what to do.
    """

    error: str
    description: str
    status: int = 400
    document: str = ""
    advice: Advice | None = None


@dataclass(frozen=True, slots=True)
class OAuthResponse:
    """A JSON answer. `headers` are those beside Content-Type; no member of `body` is null."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def error_response(error: str, description: str, status: int = 400) -> OAuthResponse:
    """An error as JSON. A 401 says how to do better (RFC 9110 section 15.5.2); what may go later is a 503."""
    body = {"error": error, "error_description": description}
    if error == "invalid_client":
        return OAuthResponse(401, body, {**NO_STORE, "WWW-Authenticate": 'Basic realm="token"'})
    if error == "too_many_requests":
        return OAuthResponse(429, body, {**NO_STORE, "Retry-After": "60"})
    return OAuthResponse(503 if error == "temporarily_unavailable" else status, body, NO_STORE)
