"""Verify the access tokens of an external issuer, `--auth URL`.

A token signed by a key that is not known may be good, with a key as new as this second. It is not refused, which would
make a person sign in again for nothing: the caller is told when to come back. Once its key has been looked for and not
found, it is refused.
Source: RFC 9068; MCP 2026-07-28 basic/authorization, "Authorization Server Discovery".
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.access_tokens import CachedToken, TokenCache, principal_from_claims
from toolgate.server.auth.tokens.jose import InvalidTokenError, JoseKey, UnknownKeyError
from toolgate.server.auth.tokens.jwks import Fetch, IssuerKeys
from toolgate.server.principal import Principal

log = logging.getLogger("toolgate.auth")

LEEWAY = 60.0  # seconds its clock may differ from ours
ALGORITHMS = ("ES256", "RS256", "EdDSA", "Ed25519")
TYPES = ("at+jwt", "jwt", "")  # few issuers know RFC 9068; an ID token is told by what is in it
OTHER_TOKENS = frozenset(("nonce", "at_hash", "c_hash", "s_hash", "events"))  # claims of ID, logout and event tokens
OTHER_KINDS = {"typ": ("ID", "Refresh", "Offline", "Logout"), "token_use": ("id",)}  # Keycloak's, Cognito's


class ExternalTokens:
    """Verifies the tokens of `issuer` that are for one of `audience`."""

    def __init__(
        self, issuer: str, audience: Sequence[str], fetch: Fetch, *, now: Callable[[], float] = time.time
    ) -> None:
        self._issuer = IssuerKeys(issuer, fetch, now)
        self._audience = tuple(audience)
        self._now = now
        self._verified = TokenCache()
        self._keys: list[JoseKey] = []  # those by which what is remembered was verified

    def find_cached(self, token: bytes) -> Principal | None:
        now = self._now()
        is_known = self._issuer.keys is self._keys and not self._issuer.is_due(now)
        return self._verified.find(token, now) if is_known else None

    async def verify(self, token: str) -> Principal:
        issuer, looks = self._issuer, self._issuer.fetch_count
        kid = jose.check_header(token, TYPES, ALGORITHMS, issuer.issuer).get("kid", "")  # nonsense waits for no issuer
        await issuer.ensure_keys()
        try:
            claims = self._read(token)
        except UnknownKeyError:
            if issuer.fetch_count == looks:
                await issuer.seek_key(kid)
            claims = self._read(token)
        self._forget()
        _check_kind(claims)
        principal = replace(principal_from_claims(claims), until=claims["exp"] + LEEWAY)
        self._verified.add(token.encode(), CachedToken(principal, claims["exp"] + LEEWAY, "", ""))
        return principal

    async def close(self) -> None:
        await self._issuer.close()

    def _read(self, token: str) -> dict[str, Any]:
        return jose.verify(
            token,
            self._issuer.keys,
            typ=TYPES,
            algorithms=ALGORITHMS,
            issuer=self._issuer.issuer,
            audience=self._audience,
            own_audiences=self._issuer.own_audiences,
            leeway=LEEWAY,
            now=self._now(),
        )

    def _forget(self) -> None:
        """Keys that were fetched anew may be others: what they don't hold good any more must be found out."""
        if self._issuer.keys is not self._keys:
            self._keys = self._issuer.keys
            self._verified.clear()


def _check_kind(claims: Mapping[str, Any]) -> None:
    """Raise InvalidTokenError for a token that was made for something else than access."""
    if not OTHER_TOKENS.isdisjoint(claims):
        raise InvalidTokenError("not an access token")
    if any(claims.get(name) in kinds for name, kinds in OTHER_KINDS.items() if isinstance(claims.get(name), str)):
        raise InvalidTokenError("not an access token")
