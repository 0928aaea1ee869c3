"""Revoke and introspect tokens, each for the client it was issued to. Runs inside one transaction.

Source: RFC 7009, RFC 7662.
"""

from dataclasses import dataclass
from typing import Any

from toolgate.server.auth.clients.model import AUTH_METHODS, PROVING_METHODS
from toolgate.server.auth.oauth_server import refresh_tokens
from toolgate.server.auth.oauth_server.authlib import IntrospectionEndpoint, RevocationEndpoint
from toolgate.server.auth.oauth_server.requests import OAuthRequestError
from toolgate.server.auth.oauth_server.scope_policy import is_own_resource
from toolgate.server.auth.oauth_server.server import AuthlibClient, AuthlibServer
from toolgate.server.state import grant_rows
from toolgate.server.state.grant_rows import hash_secret


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A token of ours that was asked about: `told` is what introspection says of it. The names are Authlib's."""

    client: str
    introspection: dict[str, Any]
    grant_id: str | None = None
    jti: str | None = None  # of an access token
    is_over: bool = False

    def check_client(self, client: AuthlibClient) -> bool:
        return client.client.id == self.client

    def is_expired(self) -> bool:
        return self.is_over

    def is_revoked(self) -> bool:
        return self.is_over


def find_token(server: AuthlibServer, token: str) -> StoredToken | None:
    """The token, access or refresh, whatever the hint said."""
    claims = server.inputs.claims
    if claims is not None:
        row = grant_rows.find_access_token(server.connection, claims["jti"])
        response = {name: claims[name] for name in ("iss", "aud", "sub", "scope", "client_id", "iat", "exp", "jti")}
        over = row is None or row.denied
        return StoredToken(
            str(claims["client_id"]), {"token_type": "Bearer", **response}, jti=claims["jti"], is_over=over
        )
    row = grant_rows.find_refresh_token(server.connection, hash_secret(token))
    grant = (
        grant_rows.find_grant(server.connection, row.grant_id)
        if row
        else refresh_tokens.find_grant_by_mark(server.connection, token)
    )
    if grant is None:
        return None
    over = row is None or row.redeemed_at is not None or not grant.is_valid(server.now)
    over = over or not is_own_resource([grant.resource], server.issuer.public_url)
    response = {"iss": server.issuer.public_url, "client_id": grant.client, "sub": grant.subject, "scope": grant.scope}
    response |= {"iat": int(grant.made_at), "exp": int(grant.expires_at)}
    return StoredToken(grant.client, response, grant_id=grant.id, is_over=over)


class Revocation(RevocationEndpoint):  # type: ignore[misc]  # Authlib has no types
    CLIENT_AUTH_METHODS = AUTH_METHODS

    def check_params(self, request: Any, client: Any) -> None:
        """A hint that isn't known is no mistake: it is not needed (RFC 7009 section 2.1)."""
        if "token" not in request.form:
            raise OAuthRequestError("invalid_request")

    def query_token(self, token_string: str, token_type_hint: str | None) -> StoredToken | None:
        return find_token(self.server, token_string)

    def revoke_token(self, token: StoredToken, request: Any) -> None:
        """A refresh token takes its whole family along, with the access tokens made of it."""
        if token.grant_id is not None:
            self.server.end_grant(token.grant_id)
        if token.jti is not None:
            grant_rows.deny_access_token(self.server.connection, token.jti)
            self.server.denied.append(token.jti)


class Introspection(IntrospectionEndpoint):  # type: ignore[misc]  # as above
    CLIENT_AUTH_METHODS = PROVING_METHODS

    def check_params(self, request: Any, client: Any) -> None:
        if "token" not in request.form:
            raise OAuthRequestError("invalid_request")

    def query_token(self, token_string: str, token_type_hint: str | None) -> StoredToken | None:
        return find_token(self.server, token_string)

    def check_permission(self, token: StoredToken, client: AuthlibClient, request: Any) -> bool:
        return token.check_client(client)

    def introspect_token(self, token: StoredToken) -> dict[str, Any]:
        return {"active": True, **token.introspection}
