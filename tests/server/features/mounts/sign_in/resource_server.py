"""A mounted server with the official SDK that takes an issuer's tokens: `resource_server.py PORT ISSUER`."""

import sys

import httpx
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken, TokenVerifier
from mcp.server.auth.settings import AuthSettings
from pydantic import AnyHttpUrl

port, issuer = sys.argv[1:]
resource = f"http://127.0.0.1:{port}/mcp"


class IssuerTokens(TokenVerifier):
    async def verify_token(self, token: str) -> AccessToken | None:
        async with httpx.AsyncClient() as client:
            keys = KeySet.import_key_set((await client.get(f"{issuer}/jwks")).json())
        claims = jwt.JWTClaimsRegistry(
            iss={"essential": True, "value": issuer}, aud={"essential": True, "value": resource}
        )
        try:
            found = jwt.decode(token, keys).claims
            claims.validate(found)
        except (JoseError, ValueError):
            return None
        return AccessToken(
            token=token,
            client_id=found["client_id"],
            scopes=found.get("scope", "").split(),
            expires_at=found["exp"],
            resource=resource,
            subject=found["sub"],
        )


server = MCPServer(
    "notes",
    token_verifier=IssuerTokens(),
    auth=AuthSettings(
        issuer_url=AnyHttpUrl(issuer),
        resource_server_url=AnyHttpUrl(resource),
        required_scopes=["notes:read"],
        validate_token_resource=True,
    ),
)


@server.tool()
def whoami() -> str:
    """Return whose token it is."""
    token = get_access_token()
    assert token is not None
    return str(token.subject)


if __name__ == "__main__":
    server.run("streamable-http", host="127.0.0.1", port=int(port))
