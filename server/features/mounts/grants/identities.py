"""Keep what a person's identity provider gave them with their sign-in here, and exchange it for them.

It lies sealed in the state as a person's connections do, and ends with them. An ID token ends soon, so it is refreshed
where the provider gives a refresh token, once for all who wait. The refresh token goes to the provider alone, which is
to revoke it where the person ends here, or no mount asks any more.
"""

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from toolgate.server.auth.login.accounts import Person, SignInError
from toolgate.server.auth.login.provider_tokens import ProviderTokens
from toolgate.server.auth.login.providers import OpenIdProvider
from toolgate.server.auth.tokens.access_tokens import name_principal
from toolgate.server.base.errors import StateError
from toolgate.server.cli.sign_in.requests import OAuthAnswer, OAuthRequests
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.grants.token_endpoint import TokenEndpoint
from toolgate.server.features.mounts.sign_in import requests
from toolgate.server.features.mounts.sign_in.requests import NotSentError, RefusedError, is_token, shorten
from toolgate.server.features.mounts.sign_in.rows import IDENTITY
from toolgate.server.features.mounts.sign_in.store import (
    ConnectionStore,
    FarClient,
    MountConnection,
    SignedIn,
    SignInFault,
)
from toolgate.server.features.mounts.sign_in.tokens import MountTokens
from toolgate.server.features.mounts.upstream.errors import MountError

MISSING = "IDENTITY_MISSING"
GRACE = 600.0  # seconds after the last mount that asks is gone: its table may have a fault for a moment
AT_ONCE = 16  # people whose tokens are removed and revoked together
NO_PROVIDER = "it takes people whom an identity provider knows: its operator has to serve HTTP with --login oidc=ISSUER"

log = logging.getLogger("toolgate.mounts")


class Identities:
    """The people of one server as their identity provider knows them."""

    def __init__(self, store: ConnectionStore, grace: float = GRACE) -> None:
        self._store = store
        self._grace = grace
        self._unwanted_at = store.now()  # since when no mount asks, by the clock of the state
        self._is_empty = False  # what was kept is removed, and no mount has asked since
        self._mounts: dict[str, MountConfig] = {}  # that ask for them, by name
        self._provider: OpenIdProvider | None = None
        self._tokens: MountTokens | None = None
        self._server = ""
        self._public_url = ""

    @property
    def wants_tokens(self) -> bool:
        """Whether a mount asks for them: else nothing is kept."""
        return bool(self._mounts)

    @property
    def may_keep(self) -> bool:
        """Whether there may be something of a person."""
        return self.wants_tokens or not self._is_empty

    def open_mount(self, config: MountConfig) -> None:
        """Take a mount that asks for them, and is served from now on."""
        self._mounts[config.name] = config
        self._is_empty = False

    def close_mount(self, config: MountConfig) -> None:
        """Forget a mount that is served no more."""
        if self._mounts.get(config.name) is config:
            del self._mounts[config.name]
            self._unwanted_at = self._store.now()

    def use(self, provider: OpenIdProvider, public_url: str) -> None:
        """Take the provider at which people sign in, and the URL of the pages here."""
        provider.keeper = self
        self._provider, self._public_url = provider, public_url
        self._server = hashlib.sha256(provider.issuer.encode()).hexdigest()
        own = MountConfig(name=IDENTITY, url=provider.issuer)
        self._tokens = MountTokens(
            own, self._server, self._store, lambda: "", _find_no_secret, self._refresh, self._revoke
        )

    async def keep(self, person: Person, tokens: ProviderTokens) -> None:
        """Store the tokens of a sign-in. One that can't be stored is no reason to keep the person out."""
        principal = name_principal(person.issuer, person.subject)
        if self._tokens is None or not is_token(tokens.id_token):
            return
        try:
            again = tokens.refresh_token if is_token(tokens.refresh_token) else await self._find_earlier(principal)
            signed_in = SignedIn(person.issuer, "", "", FarClient(""), "", "", tokens.id_token, again)
            left = tokens.expires_at - time.time()
            lasts = shorten(left) if left > 0 else 0.0
            await self._store.keep_identity(principal, self._server, signed_in, self._store.now() + lasts)
        except StateError as error:
            log.warning("what the identity provider gave a person can't be stored: %s", error)
        self._tokens.forget(principal)

    async def _find_earlier(self, principal: str) -> str:
        """Return the refresh token of an earlier sign-in, or "": some providers give one with the first alone. Raises
        StateError."""
        held = await self._store.find(principal, IDENTITY)
        is_usable = held is not None and held.server == self._server and not held.ended
        return held.signed_in.refresh_token if held is not None and is_usable and held.signed_in is not None else ""

    async def find_id_token(self, principal: str) -> str:
        """Return the ID token of a person. Raises MountError: IDENTITY_MISSING."""
        if self._tokens is None or self._provider is None:
            raise MountError(MISSING, NO_PROVIDER)
        try:
            found = await self._tokens.find(principal)
        except MountError as error:
            if error.code != "SIGN_IN_REQUIRED":
                raise
            found = ""  # it has ended
        if found:
            return found
        way = f"sign out at {self._public_url}/logout, sign in again with {self._provider.title}, then try once more"
        raise MountError(MISSING, f"it takes people whom {self._provider.title} knows: {way}")

    async def ask_provider(self, fields: Mapping[str, str]) -> OAuthAnswer:
        """Return what the provider's token endpoint answers to the client that this server is there. Raises
        SignInFault."""
        if self._provider is None:
            raise NotSentError("there is no identity provider")
        try:
            client = await self._provider.find_client()
        except SignInError as error:
            raise NotSentError(str(error)) from None
        endpoint = TokenEndpoint(client.token_endpoint, methods=client.methods)
        return await endpoint.ask(client.id, client.secret, fields)

    async def remove_unwanted(self) -> Sequence[MountConnection]:
        """Remove some of what is kept, where no mount has asked for it for a while, and return it. Raises
        StateError."""
        if self.wants_tokens or self._is_empty or self._store.now() < self._unwanted_at + self._grace:
            return []
        removed = await self._store.remove_identities(AT_ONCE)
        self._is_empty = not removed and not self.wants_tokens
        return removed

    async def revoke(self, held: MountConnection) -> bool:
        """Have the provider revoke what is kept no more. Return whether it has, or had nothing to revoke."""
        if self._tokens is not None:
            self._tokens.forget(held.principal)
        if held.signed_in is None or not held.signed_in.refresh_token:
            return True  # an ID token is not revoked
        return held.server == self._server and await self._revoke(held.signed_in)

    async def _revoke(self, signed_in: SignedIn) -> bool:
        assert self._provider is not None  # it has given them
        try:
            client = await self._provider.find_client()
        except SignInError:
            return False
        known = FarClient(client.id, client.secret, requests.choose_method(client.secret, client.methods))
        asked = replace(signed_in, client=known, revocation_endpoint=client.revocation_endpoint)
        return await requests.revoke(OAuthRequests(client.revocation_endpoint or client.token_endpoint), asked)

    async def close(self) -> None:
        """Let refreshes that are sent store their answers."""
        if self._tokens is not None:
            await self._tokens.close()

    async def _refresh(self, signed_in: SignedIn, principal: str) -> tuple[SignedIn, float | None]:
        """Return a new ID token of the same person (OpenID Connect Core section 12.2). Raises SignInFault."""
        assert self._provider is not None  # since the tokens are there
        answer = await self.ask_provider({"grant_type": "refresh_token", "refresh_token": signed_in.refresh_token})
        token, again = answer.json.get("id_token"), answer.json.get("refresh_token")
        try:
            claims = await self._provider.verify_id_token(token)
        except SignInError as error:
            raise SignInFault(str(error)) from None
        if name_principal(self._provider.issuer, str(claims.get("sub"))) != principal:
            raise RefusedError("it answered for another person", "invalid_grant")
        kept = again if is_token(again) else signed_in.refresh_token
        return replace(signed_in, access_token=str(token), refresh_token=str(kept)), shorten(
            claims["exp"] - time.time()
        )


async def _find_no_secret(_: MountConfig) -> str:
    return ""  # the provider knows its own
