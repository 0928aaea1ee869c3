"""An authorization request looked at: who asks, where the answer goes, for what. Runs inside one transaction.

Until the client and its redirect URI are known to be right, a mistake goes nowhere but to the person's own screen; from
then on back to the client (RFC 6749 section 4.1.2.1): of the operator's own at once, of others once the person has seen
where that is (RFC 9700 section 4.11.2).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from toolgate.server.auth.clients.redirect_uris import shown_host
from toolgate.server.auth.oauth_server import Mistake, Question, Redirect
from toolgate.server.auth.oauth_server.authlib import OAuth2Error
from toolgate.server.auth.oauth_server.grant_types import Code, check_resource
from toolgate.server.auth.oauth_server.requests import Refusal, Request, describe
from toolgate.server.auth.oauth_server.scope_policy import OFFLINE
from toolgate.server.state.clients import OPERATORS

if TYPE_CHECKING:
    from toolgate.server.auth.oauth_server.server import Server


def consent(server: "Server", request: Request) -> Code | Redirect | Mistake:
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
        told = server.handle_error_response(request, error)
        assert isinstance(told, Redirect | Mistake)
        if redirect_uri is None or is_vouched_for or isinstance(told, Mistake):
            return told
        return replace(told, host=shown_host(redirect_uri), description=describe(error))
    assert isinstance(grant, Code)
    return grant


def question_of(grant: Code, id: str, expires_at: float) -> Question:
    request, server = grant.request, grant.server
    return Question(
        id=id,
        client=request.client.client,
        redirect_uri=grant.redirect_uri,
        scopes=tuple(scope for scope in request.scope.split() if scope != OFFLINE),
        resource=server.issuer.tokens.audience[0],
        state=request.payload.state,
        expires_at=expires_at,
    )


def _redirect_uri(server: "Server", request: Request) -> tuple[str, bool]:
    """Where the answer may go, and whether the operator vouches for that. Raises a Refusal where it can't be told: of
    two clients, or two URIs, neither."""
    given = request.form
    if not request.readable or request.came_twice("client_id") or request.came_twice("redirect_uri"):
        request.check()
    caller = server.query_client(given.get("client_id", ""))
    if caller is None:
        raise Refusal("invalid_client", "The client is not known here: let it connect anew.")
    uri = given.get("redirect_uri") or caller.get_default_redirect_uri()
    if uri is None:
        raise Refusal("invalid_request", "The redirect_uri is missing.")
    if not caller.check_redirect_uri(uri):
        raise Refusal("invalid_request", "The redirect_uri is not one the client has registered.")
    return uri, caller.client.kind == OPERATORS


def _check_response(request: Request) -> None:
    """Refuse what would change the meaning of the rest if it were passed over."""
    if "response_type" not in request.form:
        raise Refusal("invalid_request", "The response_type is missing.")
    if request.form["response_type"] != "code":
        raise Refusal("unsupported_response_type")
    for name in ("request", "request_uri"):
        if name in request.form:
            raise Refusal(f"{name}_not_supported")
