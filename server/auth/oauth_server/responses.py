"""Define what the authorization server answers: a redirect, JSON, or an error page with advice in fixed sentences."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from toolgate.server.auth.oauth_server.requests import DESCRIPTIONS

FormPairs = list[tuple[str, str]]  # pairs of a urlencoded body, in order, with repetitions
NO_STORE = {"Cache-Control": "no-store", "Pragma": "no-cache"}  # RFC 6749 section 5.1


AGAIN = "Connect again from the app in a minute: it may then register itself."
ADD_AGAIN = "Remove this server in the app, add it again and connect: the app then registers itself."
LET_REGISTER = ("The operator of this server can let apps register themselves", "--registration dynamic")
ADD = ("The operator of this server can add the app", "toolgate client add")
CODEX = ("Codex", "codex mcp login NAME --oauth-client-registration dcr")
CLAUDE_CODE = (
    "Claude Code, with the ID that “toolgate client add” prints",
    "claude mcp add --transport http --client-id ID --callback-port 3118 NAME URL",
)


class Advice(msgspec.Struct, frozen=True):
    """Advice for a person. `commands` are options and commands, each with a label."""

    sentences: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]


def advise(kinds: Collection[str], *, unreached: bool) -> Advice:
    """Return advice for a server that accepts clients of these `kinds`; `unreached`: it can't fetch the document."""
    if "dynamic" not in kinds:
        return Advice((), (ADD, LET_REGISTER, CLAUDE_CODE))
    if "document" not in kinds:
        return Advice((ADD_AGAIN,), (CODEX, CLAUDE_CODE))
    return Advice((AGAIN,) if unreached else (), (LET_REGISTER, CODEX, CLAUDE_CODE))


class Redirect(msgspec.Struct, frozen=True):
    """Send the browser to `location` (302; 303 after a POST), with `iss`, and with `state` if the request had one.

    `host`: the destination, to be shown on a page first with the error; otherwise any registered client could use this
    server as an open redirect. "" if a person has answered, or the operator vouches for the client.
    """

    location: str
    host: str = ""
    description: str = ""


class ErrorPage(msgspec.Struct, frozen=True):
    """Show a page instead of redirecting: the client or the redirect URI can't be trusted.

    `document`: the URL of the client's metadata document, if that is at fault; `advice`: what to do.
    """

    error: str
    description: str
    status: int = 400
    document: str = ""
    advice: Advice | None = None


class OAuthResponse(msgspec.Struct, frozen=True):
    """A JSON answer. `headers` come besides Content-Type; no member of `body` is null."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])


def error_response(error: str, description: str = "", status: int = 400, wait: int = 60) -> OAuthResponse:
    """Return an error as JSON. A 401 names the scheme (RFC 9110 section 15.5.2). A temporary error is a 503, or a 429
    with the seconds to `wait`."""
    body = {"error": error, "error_description": description or DESCRIPTIONS[error]}
    if error == "invalid_client":
        return OAuthResponse(401, body, {**NO_STORE, "WWW-Authenticate": 'Basic realm="token"'})
    if error == "too_many_requests":
        return OAuthResponse(429, body, {**NO_STORE, "Retry-After": str(wait)})
    return OAuthResponse(503 if error == "temporarily_unavailable" else status, body, NO_STORE)
