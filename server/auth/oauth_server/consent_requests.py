"""Check authorization requests, and seal those that wait for a person's consent.

Until the client and its redirect URI are verified, errors are shown to the person only. After that they go to the
client (RFC 6749 section 4.1.2.1): at once for the operator's own clients, for others after the person has seen the
destination (RFC 9700 section 4.11.2).

The sealed request is its own id. So opening one stores nothing, and no request displaces another.
"""

import secrets
import time
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from toolgate.server.auth.clients.model import OAuthClient
from toolgate.server.auth.clients.redirect_uris import display_host
from toolgate.server.auth.oauth_server.authlib import OAuth2Error
from toolgate.server.auth.oauth_server.grant_types import CodeGrant, check_resource
from toolgate.server.auth.oauth_server.requests import OAuthRequest, OAuthRequestError, describe
from toolgate.server.auth.oauth_server.responses import ErrorPage, Redirect
from toolgate.server.auth.oauth_server.server import AuthlibServer
from toolgate.server.base.principals.scopes import OFFLINE
from toolgate.server.state.keys.sealed_state import Sealer, SealError
from toolgate.server.state.rows.clients import CONFIGURED
from toolgate.server.state.rows.grants import hash_secret

LIFETIME = 600.0  # seconds for a person to sign in, find the password and read
PURPOSE = "authorization request"


class ConsentRequest(msgspec.Struct, frozen=True):
    """A request for the consent page, answered once within ten minutes.

    `scopes` are those requested and served, in display order; if none are requested, all that are served.
    `stays_signed_in`: it also asks for `offline_access`. `resource` is the canonical one. `client` is the client that
    asks, with `.name`, `.id`, `.kind`, `.host` (None: it chose its own name), `.loopback_only`.
    """

    id: str
    client: OAuthClient
    redirect_uri: str
    scopes: tuple[str, ...]
    stays_signed_in: bool
    resource: str
    state: str | None
    expires_at: float  # seconds since the epoch

    @property
    def redirect_host(self) -> str:
        """Return where the code goes, in words for a person."""
        return display_host(self.redirect_uri)


class SealedConsent(msgspec.Struct, frozen=True):
    """A sealed request: `id`, the original `query`, and `mark`, under which its answer is stored until `expires_at`
    (seconds since the epoch)."""

    id: str
    query: str
    mark: str
    expires_at: float


class ConsentRequests:
    """Seal and open requests. `seal` has its own key file and outlives the process. Processes with the same state and
    `public_url` read each other's."""

    def __init__(self, seal: Sealer, public_url: str, now: Callable[[], float] = time.time) -> None:
        self._seal = seal
        self._public_url = public_url
        self._now = now

    def seal(self, query: str) -> tuple[str, float]:
        """Return a new request's id, in URL-safe characters, a third longer than the query, and when it expires."""
        until = self._now() + LIFETIME
        sealed = self._seal.seal([query, secrets.token_urlsafe(16), until], PURPOSE, self._public_url)
        return sealed.rstrip("="), until

    def open(self, id: str) -> SealedConsent | None:
        """Return the sealed request, or None if it is forged or has expired."""
        try:
            query, name, until = self._seal.unseal(id + "=" * (-len(id) % 4), PURPOSE, self._public_url)
        except SealError:
            return None
        return SealedConsent(id, query, hash_secret(f"question\n{name}"), until) if self._now() < until else None


def check_authorization(server: AuthlibServer, request: OAuthRequest) -> CodeGrant | Redirect | ErrorPage:
    """Return the grant that a person could approve, or the error to answer."""
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
        assert isinstance(outcome, Redirect | ErrorPage)
        if redirect_uri is None or is_vouched_for or isinstance(outcome, ErrorPage):
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
        stays_signed_in=OFFLINE in request.scope.split(),
        resource=server.issuer.tokens.audience[0],
        state=request.payload.state,
        expires_at=expires_at,
    )


def _redirect_uri(server: AuthlibServer, request: OAuthRequest) -> tuple[str, bool]:
    """Return the redirect URI, and whether the operator vouches for it. Raises OAuthRequestError if there is none, or
    if there are two clients or URIs."""
    form = request.form
    if not request.is_readable or request.is_repeated("client_id") or request.is_repeated("redirect_uri"):
        request.check()
    caller = server.query_client(form.get("client_id", ""))
    if caller is None:
        raise OAuthRequestError("invalid_client", "This server does not know the app.")
    uri = form.get("redirect_uri") or caller.get_default_redirect_uri()
    if uri is None:
        raise OAuthRequestError("invalid_request", "The redirect_uri is missing.")
    if not caller.check_redirect_uri(uri):
        raise OAuthRequestError("invalid_request", "The redirect_uri is not registered for this client.")
    return uri, caller.client.kind == CONFIGURED


def _check_response(request: OAuthRequest) -> None:
    """Refuse parameters that can't be ignored without changing the request's meaning."""
    if "response_type" not in request.form:
        raise OAuthRequestError("invalid_request", "The response_type is missing.")
    if request.form["response_type"] != "code":
        raise OAuthRequestError("unsupported_response_type")
    for name in ("request", "request_uri"):
        if name in request.form:
            raise OAuthRequestError(f"{name}_not_supported")
