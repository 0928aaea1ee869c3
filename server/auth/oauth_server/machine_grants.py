"""Issue tokens without a person at a screen: to a client for itself, or by an identity provider's assertion (ID-JAG).

Each grant runs inside one transaction. None issues a refresh token: the client can ask again. Source: RFC 6749 section
4.4; RFC 7521, RFC 7523; draft-ietf-oauth-identity-assertion-authz-grant (ID-JAG); the MCP extensions
oauth-client-credentials and enterprise-managed-authorization.
"""

from collections.abc import Mapping
from typing import Any

from toolgate.server.auth.clients import model
from toolgate.server.auth.login.accounts import Person, save_person
from toolgate.server.auth.oauth_server.authlib import BaseGrant, ClientCredentialsGrant, TokenEndpointMixin
from toolgate.server.auth.oauth_server.client_auth import Assertion
from toolgate.server.auth.oauth_server.grant_types import check_resource
from toolgate.server.auth.oauth_server.requests import OAuthRequestError, is_own_resource, scopes_for
from toolgate.server.base.principals.principal import derive_subject
from toolgate.server.base.principals.scopes import OFFLINE, READ
from toolgate.server.state.rows import clients as client_rows
from toolgate.server.state.rows import grants as grant_rows


class MachineGrant(ClientCredentialsGrant):  # type: ignore[misc]  # Authlib has no types
    """Issue a token to a client for itself, if the operator configured it so (`OAuthClient.grants`)."""

    TOKEN_ENDPOINT_AUTH_METHODS = model.PROVING_METHODS

    def validate_token_request(self) -> None:
        super().validate_token_request()
        check_resource(self)
        asked = scopes_for(self.request.client.client, self.request.payload.scope, self.server.served)
        granted_scopes = [scope for scope in asked if scope != OFFLINE]
        if not granted_scopes:
            raise OAuthRequestError("invalid_scope")
        self.request.payload.data["scope"] = " ".join(granted_scopes)
        self.server.check_token_limit(self.request.client.client.id, self.request.client.client.id)


class IdJagGrant(BaseGrant, TokenEndpointMixin):  # type: ignore[misc]  # as above
    """Issue a token to a client for a person, by a provider's assertion (Enterprise-Managed Authorization)."""

    GRANT_TYPE = model.ID_JAG
    TOKEN_ENDPOINT_AUTH_METHODS = model.PROVING_METHODS

    def validate_token_request(self) -> None:
        caller = self.authenticate_token_endpoint_client()
        if not caller.check_grant_type(self.GRANT_TYPE):
            raise OAuthRequestError("unauthorized_client")
        self.request.client = caller
        self.claims = self._claims(caller.client.id)
        check_resource(self)
        self.scope = self._scope(caller.client)

    def create_token_response(self) -> tuple[int, dict[str, Any], list[tuple[str, str]]]:
        person = self._person(self.claims["iss"], self.claims["sub"])
        if not self.server.can_sign_in(person):
            raise OAuthRequestError("invalid_grant", "This person may not sign in to this server.")
        subject, client = derive_subject(person.issuer, person.subject), self.request.client.client.id
        self.server.check_token_limit(subject, client)
        save_person(self.server.connection, person, self.server.now)
        token = self.server.mint(client, subject, self.scope)
        client_rows.mark_approved(self.server.connection, client, self.server.now)  # by the provider, for its people
        return 200, token, self.TOKEN_RESPONSE_HEADER

    def _person(self, issuer: str, known_as: str) -> Person:
        """Return the assertion's person. Their address counts if the provider says it is verified; if it says nothing,
        the address verified earlier counts."""
        email_claim, verified = self.claims.get("email"), self.claims.get("email_verified")
        if verified is None:
            row = grant_rows.find_person(self.server.connection, derive_subject(issuer, known_as))
            email = row.email if row is not None else None
        else:
            email = email_claim if isinstance(email_claim, str) and verified in (True, "true") else None
        return Person(issuer, known_as, model.display_name(email or known_as), email)

    def _claims(self, client: str) -> Mapping[str, Any]:
        """Return the claims that a trusted provider signed for this server and client, on first use."""
        assertion: Assertion | None = self.server.inputs.person
        if assertion is None:
            raise OAuthRequestError("invalid_grant")
        claims, subject = assertion.claims, assertion.claims.get("sub")
        right = isinstance(subject, str) and subject and claims.get("client_id") == client and "iat" in claims
        if (
            not right
            or "cnf" in claims
            or not self._is_for_us(claims.get("resource"))
            or not self.server.use_assertion(assertion, client)
        ):
            raise OAuthRequestError("invalid_grant")
        return claims

    def _is_for_us(self, resource: object) -> bool:
        named = [resource] if isinstance(resource, str) else resource
        if not isinstance(named, list) or not named or not all(isinstance(each, str) for each in named):
            return False
        return is_own_resource(named, self.server.issuer.public_url)

    def _scope(self, client: model.OAuthClient) -> str:
        """Return the requested and served scopes among those granted (RFC 7521 section 4.1). A grant without scopes
        allows only reading: no person approved more."""
        granted = self.claims.get("scope", READ)
        words = granted.split() if isinstance(granted, str) else []
        asked = scopes_for(client, self.request.payload.scope or " ".join(words), self.server.served)
        granted_scopes = [scope for scope in asked if scope in words and scope != OFFLINE]
        if not granted_scopes:
            raise OAuthRequestError("invalid_scope")
        return " ".join(granted_scopes)
