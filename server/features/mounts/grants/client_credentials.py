"""Get a token for this server itself, as a client (RFC 6749 section 4.4; MCP extension oauth-client-credentials).

The secret goes to `token_url` alone, which the operator writes: a mounted server can't have it sent elsewhere.
"""

from toolgate.server.features.mounts.grants.token_endpoint import (
    GivenToken,
    TokenEndpoint,
    describe_target,
    read_given,
)
from toolgate.server.features.mounts.kept_secrets.resolver import ResolvedMount


class ClientCredentials:
    """The tokens of the client at one token endpoint."""

    def __init__(self, token_url: str) -> None:
        self._endpoint = TokenEndpoint(token_url)

    @property
    def place(self) -> str:
        return self._endpoint.host

    async def ask(self, mount: ResolvedMount) -> GivenToken:
        config = mount.config
        fields = {"grant_type": "client_credentials", **describe_target(config)}
        return read_given(await self._endpoint.ask(config.client_id, config.client_secret, fields))
