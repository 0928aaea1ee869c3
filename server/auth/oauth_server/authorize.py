"""Check an authorization request: which client, which redirect URI, which scopes. Runs inside one transaction.

Until the client and its redirect URI are known to be right, an error goes to the person's own screen alone. From then
on it goes back to the client (RFC 6749 section 4.1.2.1): for the operator's own at once, for others once the person has
seen where that is (RFC 9700 section 4.11.2).
"""

from dataclasses import replace

from toolgate.server.auth.clients.redirect_uris import display_host
from toolgate.server.auth.oauth_server.authlib import OAuth2Error
from toolgate.server.auth.oauth_server.consent_requests import ConsentRequest
from toolgate.server.auth.oauth_server.grant_types import CodeGrant, check_resource
from toolgate.server.auth.oauth_server.requests import OAuthRequest, OAuthRequestError, describe
from toolgate.server.auth.oauth_server.responses import AuthorizationErrorPage, Redirect
from toolgate.server.auth.oauth_server.scope_policy import OFFLINE
from toolgate.server.auth.oauth_server.server import AuthlibServer
from toolgate.server.state.client_rows import CONFIGURED


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
        raise OAuthRequestError("invalid_client", "The client is not known here: let it connect anew.")
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
