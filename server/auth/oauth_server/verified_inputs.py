"""Fetch and verify what a request needs before its transaction begins: assertions, keys, metadata documents."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from toolgate.server.auth.clients.metadata_documents import MetadataDocuments
from toolgate.server.auth.clients.model import ID_JAG, SECRET_METHODS, OAuthClient, find_client
from toolgate.server.auth.login.accounts import Person
from toolgate.server.auth.login.throttle import GuessAttempt, GuessLimiter, ThrottledError
from toolgate.server.auth.oauth_server.client_auth import (
    Assertion,
    Credentials,
    TooManyGuessesError,
    limit_secret_guesses,
    read_credentials,
    read_unverified_claims,
    verify_assertion,
)
from toolgate.server.auth.oauth_server.requests import OAuthRequest
from toolgate.server.auth.tokens.access_tokens import OwnTokens, UnavailableError
from toolgate.server.auth.tokens.external_issuer import IssuerKeys
from toolgate.server.auth.tokens.jose import InvalidTokenError, JoseKey, read_header
from toolgate.server.auth.tokens.signing_keys import SigningKeys
from toolgate.server.state.store import Store
from toolgate.tools.api.concurrency.threads import Threads, ThreadsBusyError

PROVIDER_PAUSE = 30.0  # seconds between two fetches for a provider's unknown key
SIGNATURES = 4  # concurrent verifications: each occupies a thread for less than a millisecond
SIGNATURE_WAIT = 5.0  # seconds to wait for a thread
ID_JAG_TYPE = ("oauth-id-jag+jwt",)


class SecretGuess(msgspec.Struct):
    """A counted guess at a client's secret. `is_right` is None until the secret was checked."""

    attempt: GuessAttempt
    is_right: bool | None = None


class VerifiedInputs(msgspec.Struct, frozen=True):
    """What was fetched, verified and counted before the transaction: the signing key, the assertions of the client and
    of an identity provider, the claims of the token in the request, and the guess at a client's secret."""

    signing: JoseKey | None = None
    client: Assertion | None = None
    person: Assertion | None = None
    claims: Mapping[str, Any] | None = None
    guess: SecretGuess | None = None


class IssuerSettings(msgspec.Struct, frozen=True):
    """Settings that are the same for all requests."""

    public_url: str
    tokens: OwnTokens
    configured_clients: Mapping[str, OAuthClient]
    client_kinds: frozenset[str]  # kinds of clients that are accepted
    can_sign_in: Callable[[Person], bool]  # of the sign-in methods
    secrets: GuessLimiter = msgspec.field(default_factory=limit_secret_guesses)

    @property
    def audience(self) -> tuple[str, ...]:
        """Return the audiences of a client's assertion: issuer or token endpoint, verbatim (RFC 7523 section 3)."""
        return (self.public_url, f"{self.public_url}/token")


class InputVerifier:
    """Prepare requests. `documents`: clients' metadata documents and keys. `providers`: keys of ID-JAGs' issuers."""

    def __init__(
        self,
        issuer: IssuerSettings,
        store: Store,
        keys: SigningKeys,
        documents: MetadataDocuments,
        providers: Mapping[str, IssuerKeys],
        now: Callable[[], float],
    ) -> None:
        self._issuer = issuer
        self._store = store
        self._keys = keys
        self._documents = documents
        self._providers = providers
        self._now = now
        self._turns, self._threads = asyncio.Semaphore(SIGNATURES), Threads(SIGNATURES)

    async def prepare(self, request: OAuthRequest, address: str) -> VerifiedInputs:
        """Fetch and verify all that the request needs, because a transaction blocks all others. Raises
        OAuthRequestError, ClientRejectedError, UnavailableError, StateError."""
        credentials, form = read_credentials(request), request.form
        if "document" in self._issuer.client_kinds and credentials.client not in self._issuer.configured_clients:
            await self._documents.refresh(credentials.client, address, accept_stale=True)
        signs, is_jag = credentials.method == "private_key_jwt", form.get("grant_type") == ID_JAG
        return VerifiedInputs(
            signing=await self._keys.active() if "grant_type" in form else None,
            client=await self._client_assertion(credentials, address) if signs else None,
            person=await self._provider_assertion(form.get("assertion", "")) if is_jag else None,
            claims=await self._claims(form["token"]) if "token" in form else None,
            guess=await self._count_guess(credentials, address),
        )

    async def settle_guess(self, guess: SecretGuess | None) -> None:
        """Undo a right guess, and take back one that was not checked."""
        if guess is None or guess.is_right is False:
            return
        if guess.is_right:
            await self._issuer.secrets.forgive(guess.attempt)
        else:
            await self._issuer.secrets.take_back(guess.attempt)

    async def _count_guess(self, credentials: Credentials, address: str) -> SecretGuess | None:
        """Count a guess at the secret of a known client. Raises TooManyGuessesError if it comes too soon."""
        if credentials.method not in SECRET_METHODS:
            return None
        client = await self._find_client(credentials)
        if client is None:
            return None
        try:
            return SecretGuess(await self._issuer.secrets.take(client.id, address))
        except ThrottledError as error:
            raise TooManyGuessesError(error.wait) from None

    async def _find_client(self, credentials: Credentials) -> OAuthClient | None:
        """Return the known client that may authenticate in this way."""
        configured, id = self._issuer.configured_clients, credentials.client
        client = await self._store.read(lambda connection: find_client(connection, configured, id))
        is_accepted = client is not None and client.kind in self._issuer.client_kinds
        return client if is_accepted and client is not None and client.accepts_method(credentials.method) else None

    async def _client_assertion(self, credentials: Credentials, address: str) -> Assertion | None:
        """Return the verified assertion of a known client that may sign."""
        issuer = self._issuer
        client = await self._find_client(credentials)
        if client is None:
            return None
        keys = await self._documents.find_client_keys(client, credentials.secret, address)
        # clients send the type JWT, client-authentication+jwt or none
        return await self._verify(partial(verify_assertion, credentials.secret, keys, client.id, issuer.audience, None))

    async def _provider_assertion(self, assertion: str) -> Assertion | None:
        """Return the verified assertion of a trusted provider."""
        issuer = read_unverified_claims(assertion).get("iss")
        provider = self._providers.get(issuer) if isinstance(issuer, str) else None
        if provider is None or not isinstance(issuer, str):
            return None
        await provider.ensure_keys()
        kid = _kid(assertion)
        if kid is not None and all(key.kid != kid for key in provider.keys):
            await provider.refresh_keys(PROVIDER_PAUSE)
        audience, keys = (self._issuer.public_url,), tuple(provider.keys)
        return await self._verify(partial(verify_assertion, assertion, keys, issuer, audience, ID_JAG_TYPE))

    async def _verify(self, verify: Callable[[float], Assertion | None]) -> Assertion | None:
        """Return `verify(now)` from one of a few threads, so that one caller's signatures delay no other request."""
        now = self._now()
        try:
            async with asyncio.timeout(SIGNATURE_WAIT), self._turns:
                return await self._threads.run(lambda: verify(now))
        except (TimeoutError, ThreadsBusyError):
            raise UnavailableError(SIGNATURE_WAIT) from None

    async def _claims(self, token: str) -> dict[str, Any] | None:
        """Return the claims of an access token, or None if it is invalid."""
        if token.count(".") != 2:
            return None
        try:
            return await self._issuer.tokens.claims(token)
        except InvalidTokenError:
            return None


def _kid(token: str) -> str | None:
    try:
        return read_header(token).get("kid")
    except InvalidTokenError:
        return None
