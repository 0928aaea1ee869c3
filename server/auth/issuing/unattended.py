"""The grants that need no person at a screen: a client's for itself, and what an identity provider says for a person.
Each runs inside one transaction. Neither gives a refresh token: whoever asked can ask again.

Source: RFC 6749 section 4.4; RFC 7521, RFC 7523; draft-ietf-oauth-identity-assertion-authz-grant (ID-JAG); the MCP
extensions oauth-client-credentials and enterprise-managed-authorization.
"""

from typing import Any

from toolgate.server.auth import clients, jose
from toolgate.server.auth.issuing.credentials import assertion_id, claims_of
from toolgate.server.auth.issuing.grants import check_resource
from toolgate.server.auth.issuing.library import BaseGrant, ClientCredentialsGrant, TokenEndpointMixin
from toolgate.server.auth.issuing.policy import OFFLINE, is_ours, scopes_for
from toolgate.server.auth.issuing.said import Refusal
from toolgate.server.auth.jose import InvalidToken
from toolgate.server.auth.principals import subject_of
from toolgate.server.state import grants as rows
from toolgate.server.state.oauth import digest


class Own(ClientCredentialsGrant):  # type: ignore[misc]  # Authlib has no types
    """A client for itself: those the operator configured so (`Client.grants`)."""

    TOKEN_ENDPOINT_AUTH_METHODS = clients.PROVEN

    def validate_token_request(self) -> None:
        super().validate_token_request()
        check_resource(self)
        asked = scopes_for(self.request.client.client, self.request.payload.scope, self.server.served)
        given = [scope for scope in asked if scope != OFFLINE]
        if not given:
            raise Refusal("invalid_scope")
        self.request.payload.data["scope"] = " ".join(given)


class IdJag(BaseGrant, TokenEndpointMixin):  # type: ignore[misc]  # as above
    """A person's identity provider says what a client may do for them (Enterprise-Managed Authorization)."""

    GRANT_TYPE = clients.ID_JAG
    TOKEN_ENDPOINT_AUTH_METHODS = clients.PROVEN
    TYP = "oauth-id-jag+jwt"

    def validate_token_request(self) -> None:
        caller = self.authenticate_token_endpoint_client()
        if not caller.check_grant_type(self.GRANT_TYPE):
            raise Refusal("unauthorized_client")
        self.request.client = caller
        self.claims = self._verified(self.request.form.get("assertion", ""), caller.client.id)
        check_resource(self)
        self.scope = self._scope(caller.client)

    def create_token_response(self) -> tuple[int, dict[str, Any], list[tuple[str, str]]]:
        issuer, known_as = self.claims["iss"], self.claims["sub"]
        subject, name = subject_of(issuer, known_as), self.claims.get("email")
        rows.put_person(
            self.server.connection,
            subject,
            issuer=issuer,
            known_as=known_as,
            name=clients.shown_name(name if isinstance(name, str) else known_as),
            seen_at=self.server.now,
        )
        token = self.server.mint(self.request.client.client.id, subject, self.scope, None)
        return 200, token, self.TOKEN_RESPONSE_HEADER

    def _verified(self, assertion: str, client: str) -> dict[str, Any]:
        """The claims, when all is right: signed by a provider we trust, for us, for this client, and new."""
        server = self.server
        issuer = claims_of(assertion).get("iss")
        if not isinstance(issuer, str) or issuer not in server.fetched.provider_keys:
            raise Refusal("invalid_grant")
        try:
            claims = jose.verify(
                assertion,
                server.fetched.provider_keys[issuer],
                typ=(self.TYP,),
                algorithms=tuple(jose.ALGORITHMS),
                issuer=issuer,
                audience=(server.issuer.public_url,),
                now=server.now,
            )
        except InvalidToken:
            raise Refusal("invalid_grant") from None
        subject, id = claims.get("sub"), assertion_id(claims, server.now)
        right = isinstance(subject, str) and subject and claims.get("client_id") == client and "iat" in claims
        if not right or "cnf" in claims or id is None or not self._is_for_us(claims.get("resource")):
            raise Refusal("invalid_grant")
        if not rows.use(server.connection, digest(id), claims["exp"] + jose.LEEWAY):
            raise Refusal("invalid_grant")
        return claims

    def _is_for_us(self, resource: object) -> bool:
        named = [resource] if isinstance(resource, str) else resource
        if not isinstance(named, list) or not named or not all(isinstance(each, str) for each in named):
            return False
        return is_ours(named, self.server.issuer.public_url)

    def _scope(self, client: clients.Client) -> str:
        """Of what the provider granted what was asked and is served (RFC 7521 section 4.1)."""
        granted = self.claims.get("scope")
        asked = self.request.payload.scope or (granted if isinstance(granted, str) else None)
        given = [scope for scope in scopes_for(client, asked, self.server.served) if scope != OFFLINE]
        if granted is not None:
            words = granted.split() if isinstance(granted, str) else []
            given = [scope for scope in given if scope in words]
        if not given:
            raise Refusal("invalid_scope")
        return " ".join(given)
