"""Lead a person from this server's own page to the authorization server of a mounted one, and back with a code.

Source: MCP 2026-07-28 basic/authorization, RFC 7636, RFC 8707, RFC 9207.
"""

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec.structs import replace

from toolgate.server.base.pkce import create_challenge
from toolgate.server.base.text import to_line
from toolgate.server.cli.mcp_client.challenge import parse_challenge
from toolgate.server.cli.mcp_client.client import McpClientError
from toolgate.server.cli.mcp_client.http import get_origin
from toolgate.server.cli.sign_in.client_choice import register_client
from toolgate.server.cli.sign_in.discovery import (
    INITIALIZE,
    MESSAGE,
    FoundServer,
    IssuerMetadata,
    discover_by,
    list_spellings,
    read_scopes,
)
from toolgate.server.cli.sign_in.requests import OAuthRequests
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.sign_in import requests
from toolgate.server.features.mounts.sign_in.requests import RefusedError
from toolgate.server.features.mounts.sign_in.store import (
    ConnectionStore,
    Departure,
    FarClient,
    SignedIn,
    SignInFault,
)

CALLBACK = "mounts/callback"
DOCUMENT = "mounts/client.json"
REMEDY = "give its mount a client_id that its operator has registered"
MAX_CODE = 4_096  # characters
MAX_SCOPE_WORDS = 300  # characters of the scopes that were refused
BEGIN_AGAIN = "end the connection on the first page and connect again, or have its operator set scopes"
OFFLINE = "offline_access"  # given with consent alone (OpenID Connect Core section 11)

FindSecret = Callable[[MountConfig], Awaitable[str]]  # the secret of a client that the operator names


class FoundSignIn(msgspec.Struct, frozen=True):
    """Where a person would sign in: shown before they leave."""

    issuer: str
    host: str
    scopes: tuple[str, ...]

    @property
    def digest(self) -> str:
        """What a form has of it."""
        return hashlib.sha256(msgspec.json.encode([self.issuer, self.host, self.scopes])).hexdigest()


class MountSignIn:
    """The sign-ins at one mount. `public_url`: of this server's pages; `name`: what it calls itself to others."""

    def __init__(
        self,
        config: MountConfig,
        server: str,
        store: ConnectionStore,
        public_url: str,
        name: str,
        find_secret: FindSecret,
    ) -> None:
        self._config = config
        self.server = server
        self._store = store
        self._public_url = public_url
        self._name = name
        self._find_secret = find_secret
        self._requests = OAuthRequests(config.url)
        self._redirect_uri = f"{public_url}/{CALLBACK}"

    @property
    def url(self) -> str:
        """The URL of the mounted server."""
        return self._config.url

    async def find(self, principal: str) -> FoundSignIn:
        """Return where a person would sign in. Raises SignInFault."""
        return await self._show(await self._discover(), principal)

    async def _show(self, found: FoundServer, principal: str) -> FoundSignIn:
        host = urlsplit(found.server.authorization_endpoint).netloc
        return FoundSignIn(found.server.issuer, host, tuple(await self._choose_scopes(found, principal)))

    async def begin(self, principal: str, shown: str) -> str:
        """Return the URL to send a person's browser to, or "" if it is not what they were shown (`FoundSignIn.digest`).
        Raises SignInFault."""
        found = await self._discover()
        found_sign_in = await self._show(found, principal)
        if found_sign_in.digest != shown:
            return ""
        server = found.server
        client = await self._choose_client(found)
        verifier = secrets.token_urlsafe(48)
        scope = " ".join(found_sign_in.scopes)
        granted = SignedIn(
            server.issuer, server.token_endpoint, server.revocation_endpoint, client, found.resource, scope, ""
        )
        departure = Departure(
            self._config.name, self.server, verifier, self._redirect_uri, server.sends_issuer, granted
        )
        state = await self._store.depart(principal, departure)
        asked = {
            "response_type": "code",
            "client_id": client.id,
            "redirect_uri": self._redirect_uri,
            "state": state,
            **create_challenge(verifier),
            "resource": found.resource,
            **({"scope": scope} if scope else {}),
            **({"prompt": "consent"} if OFFLINE in found_sign_in.scopes else {}),
        }
        page = server.authorization_endpoint
        return f"{page}{'&' if urlsplit(page).query else '?'}{urlencode(asked)}"

    async def complete(self, principal: str, departure: Departure, answer: Mapping[str, str]) -> None:
        """Store the connection of a person who has come back with this query. Raises SignInFault."""
        granted = departure.granted
        iss = answer.get("iss")
        if (iss is not None or departure.sends_issuer) and not hmac.compare_digest(
            (iss or "").encode(), granted.issuer.encode()
        ):
            raise SignInFault(
                "the answer did not come from where you were sent: nothing was connected", "SIGN_IN_MIXED_UP"
            )
        if answer.get("error") == "access_denied":
            raise SignInFault("you did not allow it there: nothing was connected", "SIGN_IN_REFUSED")
        if answer.get("error") == "invalid_scope":
            refused = to_line(granted.scope, MAX_SCOPE_WORDS)
            raise SignInFault(f"it refuses one of the scopes {refused}: {BEGIN_AGAIN}", "SIGN_IN_REFUSED")
        code = answer.get("code", "")
        if "error" in answer or not 0 < len(code) <= MAX_CODE:
            raise SignInFault(
                f"it sent an error, {to_line(answer.get('error', 'no code'), 100)}: try again", "SIGN_IN_REFUSED"
            )
        try:
            signed_in, lasts = await requests.redeem_code(
                self._requests, granted, code, departure.redirect_uri, departure.verifier
            )
        except SignInFault as error:
            if isinstance(error, RefusedError) and error.is_client and not self._config.client_id:
                await self._store.forget_client(granted.issuer, departure.redirect_uri, granted.client.id)
            raise SignInFault(f"it gave no token: {error.text}") from None
        expires_at = None if lasts is None else self._store.now() + lasts
        if self._config.client_id:  # its secret may be another one at the next refresh
            signed_in = replace(signed_in, client=replace(signed_in.client, secret=""))
        if not await self._store.keep(principal, departure, signed_in, expires_at):
            await requests.revoke(self._requests, replace(signed_in, client=granted.client))
            raise SignInFault("your account was removed meanwhile: nothing was connected", "SIGN_IN_OVER")

    async def _discover(self) -> FoundServer:
        """Raises SignInFault."""
        found = await find_server(self._requests, self._config)
        if self._config.audience and found.server.issuer not in list_spellings(self._config.audience):
            raise SignInFault(f"its authorization server is {found.server.issuer}, and not the audience of its table")
        if get_origin(found.server.authorization_endpoint) == get_origin(self._public_url):
            raise SignInFault(f"{found.server.issuer} sends people to this server itself: refused")
        _refuse_mix_up(found.server)
        return found

    async def _choose_scopes(self, found: FoundServer, principal: str) -> list[str]:
        """Return the scopes to ask for: with those that the person has, and those that a call has lacked (SEP-2350)."""
        base = self._config.scopes or _add_offline_access(found)
        held = await self._store.find(principal, self._config.name)
        if held is None or held.server != self.server or held.signed_in is None:
            return list(base)
        scopes = "" if held.ended or held.signed_in.issuer != found.server.issuer else held.signed_in.scope
        return list(dict.fromkeys((*base, *read_scopes(scopes), *held.signed_in.wanted.split())))

    async def _choose_client(self, found: FoundServer) -> FarClient:
        """Return the operator's client, or else the one that this server's document describes, or else one that is
        registered. Raises SignInFault."""
        config, server = self._config, found.server
        if config.client_id:
            secret = await self._find_secret(config)
            return FarClient(config.client_id, secret, requests.choose_method(secret, server.auth_methods))
        if server.takes_documents and self._public_url.startswith("https://"):
            return FarClient(f"{self._public_url}/{DOCUMENT}")
        known = await self._store.find_client(server.issuer, self._redirect_uri)
        if known is not None:
            asked = SignedIn(server.issuer, server.token_endpoint, "", known, found.resource, "", "")
            if await requests.is_known(self._requests, asked, self._redirect_uri):
                return known
        if not server.registration_endpoint:
            raise SignInFault(f"{server.issuer} registers no clients: {REMEDY}", "CLIENT_REFUSED")
        document = describe_client(self._public_url, self._name)
        described = {key: document[key] for key in ("client_name", "redirect_uris", "application_type")}
        described["token_endpoint_auth_method"] = requests.choose_registered_method(server.auth_methods)
        try:
            told = await register_client(self._requests, server, described, REMEDY)
        except McpClientError as error:
            raise SignInFault(str(error), "CLIENT_REFUSED") from None
        client = _read_client(told)
        await self._store.keep_client(server.issuer, self._redirect_uri, client)
        return client


async def find_server(requests: OAuthRequests, config: MountConfig, *, needs_page: bool = True) -> FoundServer:
    """Return the authorization server that a mounted server names. Raises SignInFault."""
    remedy = f"write that as url of [mounts.{config.name}], if you trust it"
    try:
        answer = await requests.send("POST", config.url, MESSAGE, INITIALIZE)
        if answer.status in (404, 405):  # as of HTTP+SSE
            answer = await requests.send("GET", config.url, {"Accept": "text/event-stream"})
        header = answer.headers.get("www-authenticate", "") if answer.status == 401 else ""
        challenge = parse_challenge(header)
        return await discover_by(requests, config.url, challenge, needs_page=needs_page, remedy=remedy)
    except McpClientError as error:
        raise SignInFault(str(error)) from None


def _add_offline_access(found: FoundServer) -> list[str]:
    """Return the scopes that the resource names, and that for refresh tokens where the authorization server has it
    (SEP-2207). Beside no others it is left out: a server gives what it gives by default."""
    is_offered = found.scopes and OFFLINE in found.server.scopes
    return [*found.scopes, OFFLINE] if is_offered else found.scopes


def _refuse_mix_up(server: IssuerMetadata) -> None:
    """Raise SignInFault for a server that sends people to another one's page without a word of who answers: it could
    use their code there (RFC 9700 section 4.4)."""
    own = {get_origin(server.issuer), get_origin(server.token_endpoint)}
    if not server.sends_issuer and get_origin(server.authorization_endpoint) not in own:
        place = urlsplit(server.authorization_endpoint).netloc
        raise SignInFault(f"{server.issuer} sends people to {place}, which does not say who answers: refused")


async def fill_in_secret(client: FarClient, config: MountConfig, find_secret: FindSecret) -> FarClient:
    """Return a client with the secret that it has now, if it is the operator's. Raises SignInFault."""
    if not config.client_secret or client.id != config.client_id:
        return client
    return replace(client, secret=await find_secret(config))


def _read_client(told: Mapping[str, Any]) -> FarClient:
    """Return the client that a server has registered. One may give a secret that nobody asked for: a client of the
    method `none` does not show it (RFC 7591 section 2)."""
    secret, method = told.get("client_secret"), told.get("token_endpoint_auth_method")
    if not isinstance(secret, str) or not secret or method == requests.NONE:
        return FarClient(told["client_id"])
    return FarClient(told["client_id"], secret, requests.BASIC if method == requests.BASIC else requests.POST)


def describe_client(public_url: str, name: str) -> dict[str, Any]:
    """Return the document at the URL that is a server's id as a client (MCP 2026-07-28, client ID metadata)."""
    return {
        "client_id": f"{public_url}/{DOCUMENT}",
        "client_name": f"{name} at {urlsplit(public_url).netloc}",
        "client_uri": public_url,
        "redirect_uris": [f"{public_url}/{CALLBACK}"],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "web",
    }
