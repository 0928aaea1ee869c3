"""A server with FastMCP where people sign in, at an authorization server of its own: `fastmcp_sign_in.py PORT`; run by
the Python of `servers.lock`."""

import sys

from fastmcp import FastMCP
from fastmcp.server.auth.providers.in_memory import InMemoryOAuthProvider
from fastmcp.server.dependencies import get_access_token
from mcp.server.auth.settings import ClientRegistrationOptions, RevocationOptions

port = sys.argv[1]
auth = InMemoryOAuthProvider(
    base_url=f"http://127.0.0.1:{port}",
    client_registration_options=ClientRegistrationOptions(
        enabled=True, valid_scopes=["notes:read"], default_scopes=["notes:read"]
    ),
    revocation_options=RevocationOptions(enabled=True),
    required_scopes=["notes:read"],
)
server = FastMCP("notes", auth=auth)


@server.tool
def whoami() -> str:
    """Return the scopes of the token."""
    token = get_access_token()
    assert token is not None
    return " ".join(token.scopes)


if __name__ == "__main__":
    server.run("http", host="127.0.0.1", port=int(port), show_banner=False)
