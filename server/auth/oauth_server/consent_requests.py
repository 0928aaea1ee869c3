"""Check authorization requests, and seal those that wait for a person's consent.

Until the client and its redirect URI are known to be right, an error goes to the person's own screen alone. From then
on it goes back to the client (RFC 6749 section 4.1.2.1): for the operator's own at once, for others once the person has
seen where that is (RFC 9700 section 4.11.2).

The sealed request is its own id. So sending one stores nothing, and no request displaces another.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from toolgate.server.auth.clients.model import OAuthClient
from toolgate.server.auth.clients.redirect_uris import display_host
from toolgate.server.auth.oauth_server.authlib import OAuth2Error
from toolgate.server.auth.oauth_server.grant_types import CodeGrant, check_resource
from toolgate.server.auth.oauth_server.requests import OFFLINE, OAuthRequest, OAuthRequestError, describe
from toolgate.server.auth.oauth_server.responses import AuthorizationErrorPage, Redirect
from toolgate.server.auth.oauth_server.server import AuthlibServer
from toolgate.server.protocol.errors import InvalidParams
from toolgate.server.state.client_rows import CONFIGURED
from toolgate.server.state.grant_rows import hash_secret
from toolgate.server.state.sealed_state import Sealer

LIFETIME = 600.0  # seconds: a person signs in, finds the password, reads
PURPOSE = "authorization request"


@dataclass(frozen=True, slots=True)
class ConsentRequest:
    """What a person is to be asked, for the consent page. Answered once, within ten minutes.

    `scopes` is what was asked and is served, in the order they are shown; with none asked, all that are served.
    `resource` is the canonical one. `client` is the one that asks: `.name`, `.id`, `.kind`, `.host` (None:
    the name is self-asserted), `.loopback_only`.
    """

    id: str
    client: OAuthClient
    redirect_uri: str
    scopes: tuple[str, ...]
    resource: str
    state: str | None
    expires_at: float  # seconds since the epoch

    @property
    def redirect_host(self) -> str:
        """Where the code goes, as a person reads it: a host with its port, or a scheme's own application."""
        return display_host(self.redirect_uri)


@dataclass(frozen=True, slots=True)
class SealedConsent:
    """`id` is the question's, `query` the request as it came, `mark` what its answer is remembered by until
    `expires_at` (seconds since the epoch)."""

    id: str
    query: str
    mark: str
    expires_at: float


class ConsentRequests:
    """`seal` is one that lasts, of its own key file. Processes of one state and `public_url` read each other's."""

    def __init__(self, seal: Sealer, public_url: str, now: Callable[[], float] = time.time) -> None:
        self._seal = seal
        self._public_url = public_url
        self._now = now

    def seal(self, query: str) -> tuple[str, float]:
        """A new question's id, of URL-safe characters, a third longer than the query; and when it expires."""
        until = self._now() + LIFETIME
        sealed = self._seal.seal([query, secrets.token_urlsafe(16), until], PURPOSE, self._public_url)
        return sealed.rstrip("="), until

    def open(self, id: str) -> SealedConsent | None:
        """None for what was not sealed here, was changed, or has expired."""
        try:
            query, name, until = self._seal.unseal(id + "=" * (-len(id) % 4), PURPOSE, self._public_url)
        except InvalidParams:
            return None
        return SealedConsent(id, query, hash_secret(f"question\n{name}"), until) if self._now() < until else None


def check_authorization(server: AuthlibServer, request: OAuthRequest) -> CodeGrant | Redirect | AuthorizationErrorPage:
    """The grant that a person could approve, or what to tell instead."""
    redirect_uri, is_vouched_for = None, False
    try:
        redirect_uri, is_vouched_for = _redirect_uri(server, request)
        request.check()
        _check_response(request)
        grant = server.get_consent_grant(request)
        check_resource(grant)
    except OAuth2Error as error:
        error.redirect_uri = redirect_uri
        outcome = server.handle_error_response(request, error)
        assert isinstance(outcome, Redirect | AuthorizationErrorPage)
        if redirect_uri is None or is_vouched_for or isinstance(outcome, AuthorizationErrorPage):
            return outcome
        return replace(outcome, host=display_host(redirect_uri), description=describe(error))
    assert isinstance(grant, CodeGrant)
    return grant


def consent_request_for(grant: CodeGrant, id: str, expires_at: float) -> ConsentRequest:
    request, server = grant.request, grant.server
    return ConsentRequest(
        id=id,
        client=request.client.client,
        redirect_uri=grant.redirect_uri,
        scopes=tuple(scope for scope in request.scope.split() if scope != OFFLINE),
        resource=server.issuer.tokens.audience[0],
        state=request.payload.state,
        expires_at=expires_at,
    )


def _redirect_uri(server: AuthlibServer, request: OAuthRequest) -> tuple[str, bool]:
    """Return the redirect URI, and whether the operator vouches for it. Raises OAuthRequestError where there is none,
    or where there are two clients or two URIs."""
    form = request.form
    if not request.is_readable or request.is_repeated("client_id") or request.is_repeated("redirect_uri"):
        request.check()
    caller = server.query_client(form.get("client_id", ""))
    if caller is None:
        raise OAuthRequestError("invalid_client", "The client is not known here. Connect again from the app.")
    uri = form.get("redirect_uri") or caller.get_default_redirect_uri()
    if uri is None:
        raise OAuthRequestError("invalid_request", "The redirect_uri is missing.")
    if not caller.check_redirect_uri(uri):
        raise OAuthRequestError("invalid_request", "The redirect_uri is not one the client has registered.")
    return uri, caller.client.kind == CONFIGURED


def _check_response(request: OAuthRequest) -> None:
    """Refuse what would change the meaning of the rest if it were passed over."""
    if "response_type" not in request.form:
        raise OAuthRequestError("invalid_request", "The response_type is missing.")
    if request.form["response_type"] != "code":
        raise OAuthRequestError("unsupported_response_type")
    for name in ("request", "request_uri"):
        if name in request.form:
            raise OAuthRequestError(f"{name}_not_supported")
