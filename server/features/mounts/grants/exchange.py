"""Exchange a person's ID token for a token of a mounted server (RFC 8693), by itself or by way of a grant (ID-JAG).

The subject is what the identity provider gave this server at the person's sign-in, never the token of a client.
Source: RFC 8693 section 2; RFC 7523; draft-ietf-oauth-identity-assertion-authz-grant; the MCP extension
enterprise-managed-authorization.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

from toolgate.server.cli.sign_in.discovery import list_spellings
from toolgate.server.cli.sign_in.requests import OAuthAnswer, OAuthRequests
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.grants.identities import Identities
from toolgate.server.features.mounts.grants.token_endpoint import (
    GivenToken,
    TokenEndpoint,
    describe_target,
    read_given,
)
from toolgate.server.features.mounts.kept_secrets.resolver import ResolvedMount
from toolgate.server.features.mounts.sign_in.flow import find_server
from toolgate.server.features.mounts.sign_in.requests import is_token
from toolgate.server.features.mounts.sign_in.store import SignInFault

EXCHANGE, JWT_BEARER = (f"urn:ietf:params:oauth:grant-type:{name}" for name in ("token-exchange", "jwt-bearer"))
KIND = "urn:ietf:params:oauth:token-type:"  # before id_token, access_token …
ID_JAG = f"{KIND}id-jag"


class TokenExchange:
    """Tokens of people at the token endpoint that the operator writes."""

    def __init__(self, token_url: str, identities: Identities) -> None:
        self._endpoint = TokenEndpoint(token_url)
        self._identities = identities

    @property
    def place(self) -> str:
        return self._endpoint.host

    async def ask(self, mount: ResolvedMount) -> GivenToken:
        config = mount.config
        subject = await self._identities.find_id_token(mount.owner)
        fields = _describe_exchange(subject, f"{KIND}access_token", describe_target(config))
        return read_given(await self._endpoint.ask(config.client_id, config.client_secret, fields))


class EnterpriseGrant:
    """Tokens of people at the authorization server that the mounted one names, by their provider's word (ID-JAG). Its
    issuer is the `audience` of the table: no other gets the grant and the client's secret."""

    def __init__(self, config: MountConfig, identities: Identities) -> None:
        self._identities = identities
        self._requests = OAuthRequests(config.url)
        self.place = urlsplit(config.url).netloc

    async def ask(self, mount: ResolvedMount) -> GivenToken:
        config = mount.config
        subject = await self._identities.find_id_token(mount.owner)
        found = await find_server(self._requests, config, needs_page=False)
        server = found.server
        if server.issuer not in list_spellings(config.audience or ""):
            raise SignInFault(f"its authorization server is {server.issuer}, and not the audience of its table")
        scope = " ".join(config.scopes or found.scopes)
        target = {"resource": found.resource, **({"scope": scope} if scope else {})}
        asked = _describe_exchange(subject, ID_JAG, {**target, "audience": server.issuer})
        grant = _read_grant(await self._identities.ask_provider(asked))
        endpoint = TokenEndpoint(server.token_endpoint, config.url, server.auth_methods)
        fields = {"grant_type": JWT_BEARER, "assertion": grant, **target}
        return read_given(await endpoint.ask(config.client_id, config.client_secret, fields))


def _describe_exchange(subject: str, wanted: str, target: Mapping[str, str]) -> dict[str, str]:
    """Return the form of an exchange for a token of the kind that is wanted."""
    return {
        "grant_type": EXCHANGE,
        "subject_token": subject,
        "subject_token_type": f"{KIND}id_token",
        "requested_token_type": wanted,
        **target,
    }


def _read_grant(answer: OAuthAnswer) -> str:
    """Return the ID-JAG, which stands in the place of an access token (RFC 8693 section 2.2.1). Raises SignInFault."""
    grant = answer.json.get("access_token")
    if answer.json.get("issued_token_type") != ID_JAG or not is_token(grant):
        raise SignInFault("the identity provider gives no grant (ID-JAG)")
    return str(grant)
