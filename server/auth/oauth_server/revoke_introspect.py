"""Revocation and introspection of tokens, each for the client they were issued to. Runs inside one transaction.

Source: RFC 7009, RFC 7662.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolgate.server.auth.clients.model import METHODS, PROVEN
from toolgate.server.auth.oauth_server import refresh_tokens
from toolgate.server.auth.oauth_server.authlib import IntrospectionEndpoint, RevocationEndpoint
from toolgate.server.auth.oauth_server.requests import Refusal
from toolgate.server.auth.oauth_server.scope_policy import is_ours
from toolgate.server.state import grants as rows
from toolgate.server.state.oauth import digest

if TYPE_CHECKING:
    from toolgate.server.auth.oauth_server.server import Caller


@dataclass(frozen=True, slots=True)
class Token:
    """A token of ours that was asked about: `told` is what introspection says of it. The names are Authlib's."""

    client: str
    told: dict[str, Any]
    grant_id: str | None = None
    jti: str | None = None  # of an access token
    over: bool = False

    def check_client(self, client: "Caller") -> bool:
        return client.client.id == self.client

    def is_expired(self) -> bool:
        return self.over

    def is_revoked(self) -> bool:
        return self.over


def find(server: Any, token: str) -> Token | None:
    """The token, access or refresh, whatever the hint said."""
    claims = server.fetched.claims
    if claims is not None:
        row = rows.access(server.connection, claims["jti"])
        told = {name: claims[name] for name in ("iss", "aud", "sub", "scope", "client_id", "iat", "exp", "jti")}
        over = row is None or row.denied
        return Token(str(claims["client_id"]), {"token_type": "Bearer", **told}, jti=claims["jti"], over=over)
    row = rows.refresh(server.connection, digest(token))
    grant = rows.grant(server.connection, row.grant_id) if row else refresh_tokens.forgotten(server.connection, token)
    if grant is None:
        return None
    over = row is None or row.redeemed_at is not None or not grant.holds(server.now)
    over = over or not is_ours([grant.resource], server.issuer.public_url)
    told = {"iss": server.issuer.public_url, "client_id": grant.client, "sub": grant.subject, "scope": grant.scope}
    told |= {"iat": int(grant.made_at), "exp": int(grant.expires_at)}
    return Token(grant.client, told, grant_id=grant.id, over=over)


class Revocation(RevocationEndpoint):  # type: ignore[misc]  # Authlib has no types
    CLIENT_AUTH_METHODS = METHODS

    def check_params(self, request: Any, client: Any) -> None:
        """A hint that isn't known is no mistake: it is not needed (RFC 7009 section 2.1)."""
        if "token" not in request.form:
            raise Refusal("invalid_request")

    def query_token(self, token_string: str, token_type_hint: str | None) -> Token | None:
        return find(self.server, token_string)

    def revoke_token(self, token: Token, request: Any) -> None:
        """A refresh token takes its whole family along, with the access tokens made of it."""
        if token.grant_id is not None:
            self.server.end_grant(token.grant_id)
        if token.jti is not None:
            rows.deny(self.server.connection, token.jti)
            self.server.denied.append(token.jti)


class Introspection(IntrospectionEndpoint):  # type: ignore[misc]  # as above
    CLIENT_AUTH_METHODS = PROVEN

    def check_params(self, request: Any, client: Any) -> None:
        if "token" not in request.form:
            raise Refusal("invalid_request")

    def query_token(self, token_string: str, token_type_hint: str | None) -> Token | None:
        return find(self.server, token_string)

    def check_permission(self, token: Token, client: "Caller", request: Any) -> bool:
        return token.check_client(client)

    def introspect_token(self, token: Token) -> dict[str, Any]:
        return {"active": True, **token.told}
