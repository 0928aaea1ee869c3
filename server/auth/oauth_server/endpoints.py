"""Answer metadata, registration, revocation and introspection requests.

Tokens are revoked and introspected only for their own client. All but the metadata runs in one transaction. Source: RFC
7009, RFC 7591 section 3, RFC 7662, RFC 8414, RFC 9207, OpenID Connect Discovery 1.0,
draft-ietf-oauth-client-id-metadata-document, draft-ietf-oauth-identity-assertion-authz-grant.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from toolgate.server.auth.clients.model import AUTH_METHODS, ID_JAG, PROVING_METHODS
from toolgate.server.auth.oauth_server import refresh_tokens
from toolgate.server.auth.oauth_server.authlib import IntrospectionEndpoint, RevocationEndpoint
from toolgate.server.auth.oauth_server.requests import OAuthRequestError, is_own_resource
from toolgate.server.auth.oauth_server.responses import NO_STORE, OAuthResponse, error_response
from toolgate.server.auth.oauth_server.server import AuthlibClient, AuthlibServer
from toolgate.server.auth.tokens import jose
from toolgate.server.base.principals.scopes import OFFLINE
from toolgate.server.state.rows import clients as client_rows
from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.rows.grants import hash_secret

MAX_CLIENTS = 50_000  # hosted platforms register again at each connection; at worst some hundred MiB
ALGORITHMS = ("ES256", "RS256", "EdDSA")  # for assertions


class StoredToken(msgspec.Struct, frozen=True):
    """A token of ours, as revocation and introspection see it. The method names are Authlib's."""

    client: str
    introspection: dict[str, Any]
    grant_id: str | None = None
    jti: str | None = None  # for an access token
    is_over: bool = False

    def check_client(self, client: AuthlibClient) -> bool:
        return client.client.id == self.client

    def is_expired(self) -> bool:
        return self.is_over

    def is_revoked(self) -> bool:
        return self.is_over


def find_token(server: AuthlibServer, token: str) -> StoredToken | None:
    """Return the access or refresh token, whatever the hint says."""
    claims = server.inputs.claims
    if claims is not None:
        row = grant_rows.find_access_token(server.connection, claims["jti"])
        response = {name: claims[name] for name in ("iss", "aud", "sub", "scope", "client_id", "iat", "exp", "jti")}
        over = row is None or row.denied
        return StoredToken(claims["client_id"], {"token_type": "Bearer", **response}, jti=claims["jti"], is_over=over)
    row = grant_rows.find_refresh_token(server.connection, hash_secret(token))
    if row is not None:
        grant = grant_rows.find_grant(server.connection, row.grant_id)
    else:
        grant = refresh_tokens.find_grant_by_mark(server.connection, token)
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
        """Accept unknown hints: they are not needed (RFC 7009 section 2.1)."""
        if "token" not in request.form:
            raise OAuthRequestError("invalid_request")

    def query_token(self, token_string: str, token_type_hint: str | None) -> StoredToken | None:
        return find_token(self.server, token_string)

    def revoke_token(self, token: StoredToken, request: Any) -> None:
        """Revoke the token. A refresh token ends its whole family, with their access tokens."""
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


def register(server: AuthlibServer, metadata: Mapping[str, Any], secret: str | None) -> OAuthResponse:
    """Register a client dynamically. The answer has what is stored, and its `secret`, if it gets one."""
    if not client_rows.make_room(server.connection, "dynamic", MAX_CLIENTS):
        return error_response("temporarily_unavailable")
    id = secrets.token_hex(16)  # never begins with "-": `token revoke client ID` takes it
    client_rows.save_client(
        server.connection,
        id,
        kind="dynamic",
        metadata=msgspec.json.encode(metadata).decode(),
        secret=hash_secret(secret) if secret is not None else None,
        made_at=server.now,
    )
    response = {"client_id": id, "client_id_issued_at": int(server.now), **metadata}
    if secret is not None:
        response |= {"client_secret": secret, "client_secret_expires_at": 0}  # never
    return OAuthResponse(201, response, NO_STORE)


def build_metadata(
    public_url: str,
    served: Sequence[str],
    grants: Sequence[str],
    methods: Sequence[str],
    *,
    registers: bool,
    takes_documents: bool,
) -> dict[str, Any]:
    """Return the metadata, one document for both of its paths.

    `grants` and `methods`: the supported grant types and client authentication methods. `registers`: clients may
    register dynamically. `takes_documents`: clients may have metadata documents.
    """
    document: dict[str, Any] = {
        "issuer": public_url,
        "authorization_endpoint": f"{public_url}/authorize",
        "token_endpoint": f"{public_url}/token",
        "revocation_endpoint": f"{public_url}/revoke",
        "introspection_endpoint": f"{public_url}/introspect",
        "jwks_uri": f"{public_url}/jwks",
        "scopes_supported": [*served, OFFLINE],
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": list(grants),
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": list(methods),
        "token_endpoint_auth_signing_alg_values_supported": list(ALGORITHMS),
        "revocation_endpoint_auth_methods_supported": list(methods),
        "revocation_endpoint_auth_signing_alg_values_supported": list(ALGORITHMS),
        "introspection_endpoint_auth_methods_supported": list(PROVING_METHODS),
        "introspection_endpoint_auth_signing_alg_values_supported": list(ALGORITHMS),
        "authorization_response_iss_parameter_supported": True,
        "client_id_metadata_document_supported": takes_documents,
        # Required by readers of OpenID Connect documents, though no ID token is ever issued
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": [jose.SIGNING_ALGORITHM],
        "request_parameter_supported": False,
        "request_uri_parameter_supported": False,
    }
    if registers:
        document["registration_endpoint"] = f"{public_url}/register"
    if ID_JAG in grants:
        document["authorization_grant_profiles_supported"] = ["urn:ietf:params:oauth:grant-profile:id-jag"]
    return document
