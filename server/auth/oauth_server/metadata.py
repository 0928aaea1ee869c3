"""Build the authorization server's metadata, one document under both of its names.

Source: RFC 8414, OpenID Connect Discovery 1.0, RFC 9207, draft-ietf-oauth-client-id-metadata-document,
draft-ietf-oauth-identity-assertion-authz-grant.
"""

from collections.abc import Sequence
from typing import Any

from toolgate.server.auth.clients.model import ID_JAG, PROVING_METHODS
from toolgate.server.auth.oauth_server.scope_policy import OFFLINE
from toolgate.server.auth.tokens import jose

ALGORITHMS = ("ES256", "RS256", "EdDSA")  # of assertions


def build_document(
    public_url: str,
    served: Sequence[str],
    grants: Sequence[str],
    methods: Sequence[str],
    *,
    registers: bool,
    takes_documents: bool,
) -> dict[str, Any]:
    """`grants` and `methods`: the grant types and client authentication methods that can be used here;
    `registers`: clients may register dynamically; `takes_documents`: they may have metadata documents."""
    metadata: dict[str, Any] = {
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
        # Readers of OpenID Connect documents want these, though no ID token is ever issued
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": [jose.SIGNING_ALGORITHM],
        "request_parameter_supported": False,
        "request_uri_parameter_supported": False,
    }
    if registers:
        metadata["registration_endpoint"] = f"{public_url}/register"
    if ID_JAG in grants:
        metadata["authorization_grant_profiles_supported"] = ["urn:ietf:params:oauth:grant-profile:id-jag"]
    return metadata
