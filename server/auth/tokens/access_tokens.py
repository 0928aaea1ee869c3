"""Mint and verify our access tokens, and cache those verified.

A token costs a signature once, then a hash. What makes a verified token invalid (a key that is gone, a token that is
denied) is read every `FRESH` seconds, so it takes effect here within that time wherever it was done, and at once where
it was done here (`deny`).
Source: RFC 9068; RFC 8725; MCP 2026-07-28 basic/authorization, "Token Handling".
"""

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

from toolgate.server.auth import scopes
from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.jose import InvalidTokenError, JoseKey, UnknownKeyError
from toolgate.server.principal import Principal

if TYPE_CHECKING:  # start-up: where another issuer signs
    from toolgate.server.auth.tokens.signing_keys import SigningKeys

log = logging.getLogger("toolgate.auth")

TYP = "at+jwt"
GRANT_CLAIM = "grant"  # a claim of ours: the grant's id
GRANT_SCOPE_CLAIM = "grant_scope"  # a claim of ours: the grant's scopes, where the token has fewer
OWN_ISSUER = "toolgate"  # the issuer of a Principal that is ours: what is stored for one outlives any public URL
LIFETIME = 15 * 60  # seconds of an access token: a client that is revoked keeps it at most that long
EXPIRY_MARGIN = 5  # seconds before its end that clients are told: they count from the answer on, some to the last one
LEEWAY = 5.0  # seconds a token of ours may be from the future: replicas have one clock, nearly
FRESH = 5.0  # seconds after which keys and denials are looked at again
RETRY = 1.0  # seconds between two reads because of an unknown key: anyone can name one
MAX_VERIFIED = 10_000  # tokens remembered, about 10 MiB; one is in use per client and hour
MAX_NAME = 1_024  # characters of a subject or client


class TemporarilyUnavailableError(Exception):
    """The keys to verify with can't be fetched now; try again after `wait` seconds."""

    def __init__(self, wait: float) -> None:
        super().__init__("the keys to verify tokens with can't be had")
        self.wait = wait


class TokenVerifier(Protocol):
    """Names the principal behind a token."""

    def find_cached(self, token: bytes) -> Principal | None:
        """Return the principal if the token was verified lately, else None. Nearly every request takes this way: no
        await."""
        ...

    async def verify(self, token: str) -> Principal:
        """Return the principal. Raises InvalidTokenError, TemporarilyUnavailableError."""
        ...


@dataclass(frozen=True, slots=True)
class CachedToken:
    """A token that was verified: by which key, and until when it is valid."""

    principal: Principal
    until: float
    kid: str
    jti: str


class TokenCache:
    """Verified tokens by their hash; the least recently used is dropped. Stores no token."""

    def __init__(self, most: int = MAX_VERIFIED) -> None:
        self._most = most
        self._held: OrderedDict[bytes, CachedToken] = OrderedDict()
        self._of_jti: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._held)

    def find(self, token: bytes, now: float) -> Principal | None:
        key = sha256(token).digest()
        held = self._held.get(key)
        if held is None:
            return None
        if now >= held.until:
            self._drop(key)
            return None
        self._held.move_to_end(key)
        return held.principal

    def add(self, token: bytes, held: CachedToken) -> None:
        key = sha256(token).digest()
        self._held[key] = held
        self._of_jti[held.jti] = key
        if len(self._held) > self._most:
            self._drop(next(iter(self._held)))

    def clear(self) -> None:
        self._held.clear()
        self._of_jti.clear()

    def keep(self, kids: Collection[str]) -> None:
        """Forget tokens that other keys signed."""
        for key in [key for key, held in self._held.items() if held.kid not in kids]:
            self._drop(key)

    def deny(self, jtis: Iterable[str]) -> None:
        """Forget these tokens, whatever else is remembered."""
        for jti in jtis:
            key = self._of_jti.get(jti)
            if key is not None:
                self._drop(key)

    def _drop(self, key: bytes) -> None:
        held = self._held.pop(key)
        if self._of_jti.get(held.jti) == key:
            del self._of_jti[held.jti]


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A new access token. Only `token` is secret; `repr` shows none of it."""

    token: str
    jti: str
    expires: int  # seconds since 1970

    def __repr__(self) -> str:
        return f"<access token {self.jti}>"


class OwnTokens:
    """`audience`: the names of what tokens are good for, the one that goes into them first. `denied()` gives the `jti`
    of all tokens that are denied and have not expired yet."""

    def __init__(
        self,
        issuer: str,
        audience: Sequence[str],
        keys: "SigningKeys",
        denied: Callable[[], Awaitable[Iterable[str]]],
        *,
        lifetime: int = LIFETIME,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.issuer = issuer
        self.audience = tuple(audience)
        self.lifetime = lifetime
        self._source = keys
        self._list_denied = denied
        self._now = now
        self._keys: list[JoseKey] = []
        self._denied: set[str] = set()
        self.minted_count = 0  # tokens, ever
        self._verified = TokenCache()
        self._refreshed_at = float("-inf")  # when keys and denials were last looked at
        self._refreshing = asyncio.Lock()

    async def mint(self, subject: str, client: str, granted: Iterable[str]) -> AccessToken:
        """A new token, by the active key."""
        return self.mint_with_key(await self._source.active(), subject, client, granted)

    def mint_with_key(
        self, key: JoseKey, subject: str, client: str, granted: Iterable[str], **more: Any
    ) -> AccessToken:
        """A new token, by `key`: inside a transaction, which can't wait. `more` claims may not
        replace ours."""
        issued, jti = int(self._now()), secrets.token_urlsafe(16)
        claims = {
            **more,
            "iss": self.issuer,
            "aud": self.audience[0],
            "sub": subject,
            "client_id": client,
            "scope": scopes.format_scopes(granted),
            "iat": issued,
            "exp": issued + self.lifetime,
            "jti": jti,
        }
        self.minted_count += 1
        return AccessToken(jose.sign(claims, key, TYP), jti, issued + self.lifetime)

    def deny(self, jtis: Collection[str]) -> None:
        """Take no token of these ids any more, from now on. The caller has kept that where `denied` finds it."""
        self._denied.update(jtis)
        self._verified.deny(jtis)

    def find_cached(self, token: bytes) -> Principal | None:
        now = self._now()
        return self._verified.find(token, now) if 0 <= now - self._refreshed_at < FRESH else None

    async def verify(self, token: str) -> Principal:
        claims = await self.claims(token)
        grant = str(claims.get(GRANT_CLAIM, ""))
        principal = replace(principal_from_claims({**claims, "iss": OWN_ISSUER}), grant=grant)
        if GRANT_SCOPE_CLAIM in claims:
            principal = replace(principal, grant_scopes=scopes.parse_scopes(claims[GRANT_SCOPE_CLAIM]))
        kid = str(jose.read_header(token).get("kid"))
        self._verified.add(token.encode(), CachedToken(principal, claims["exp"], kid, claims["jti"]))
        return principal

    async def claims(self, token: str) -> dict[str, Any]:
        """Return the claims of a valid token of ours. Raises InvalidTokenError, TemporarilyUnavailableError."""
        await self._refresh(FRESH)
        if not self._keys:
            raise TemporarilyUnavailableError(RETRY)
        try:
            claims = self._read(token)
        except UnknownKeyError:
            await self._refresh(RETRY)  # it may be as new as this second
            claims = self._read(token)
        if self._now() >= claims["exp"]:  # no leeway here: what is denied need be known no longer than this
            raise InvalidTokenError("the token has expired")
        if not _client(claims):
            raise InvalidTokenError("the token names no client")  # ours all do
        self._check_issued(claims, str(jose.read_header(token)["kid"]))
        jti = claims.get("jti")
        if not isinstance(jti, str) or jti in self._denied:
            raise InvalidTokenError("the token has been revoked")
        return claims

    def _read(self, token: str) -> dict[str, Any]:
        if "kid" not in jose.read_header(token):
            raise InvalidTokenError("the token names no key")  # ours all do
        return jose.verify(
            token,
            self._keys,
            typ=(TYP,),
            algorithms=(jose.SIGNING_ALGORITHM,),
            issuer=self.issuer,
            audience=self.audience,
            leeway=LEEWAY,
            now=self._now(),
        )

    def _check_issued(self, claims: dict[str, Any], kid: str) -> None:
        """Refuse what we can't have issued, though a key of ours signed it: a stolen key that has retired makes no
        token that is valid longer than the last one we made."""
        issued = claims.get("iat")
        if issued is None or claims["exp"] - issued > self.lifetime + LEEWAY:
            raise InvalidTokenError("the token holds longer than any of ours")
        retired = (key.retired_at for key in self._keys if key.kid == kid and key.retired_at is not None)
        if any(issued > moment + LEEWAY for moment in retired):
            raise InvalidTokenError("the token is younger than the end of its key")

    async def _refresh(self, age: float) -> None:
        """Look at keys and denials again, unless that was done less than `age` seconds ago. When the state can't be
        read, what was known goes on to hold."""
        async with self._refreshing:
            now = self._now()
            if 0 <= now - self._refreshed_at < age:  # a clock may be set back
                return
            try:
                keys, denied = await self._source.public(), set(await self._list_denied())
            except Exception:
                log.exception("keys and revoked tokens could not be read: those known go on to hold")
                self._refreshed_at = now - FRESH + RETRY  # soon again, but not for every request
                return
            fresh, kids = denied - self._denied, {key.kid for key in keys}
            if kids != {key.kid for key in self._keys}:
                self._verified.keep(kids)
            self._verified.deny(fresh)
            self._keys, self._denied = keys, denied
            self._refreshed_at = self._now()


def principal_from_claims(claims: dict[str, Any]) -> Principal:
    """Return the principal that the claims of a verified token are about. Raises InvalidTokenError."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_NAME:
        raise InvalidTokenError("the token says not whom it stands for")
    if "cnf" in claims:  # bound to a key or a certificate (RFC 7800): a bearer's word is not enough
        raise InvalidTokenError("the token is bound to a key, which can't be checked here")
    granted = scopes.parse_scopes(claims.get("scope")) | scopes.parse_scopes(claims.get("scp"))
    return Principal(str(claims["iss"]), subject, _client(claims), granted)


def _client(claims: dict[str, Any]) -> str:
    """RFC 9068's name for it, or that of OpenID Connect, or one of two large providers'."""
    named = (claims.get(name) for name in ("client_id", "azp", "cid", "appid"))
    return next((name for name in named if isinstance(name, str) and len(name) <= MAX_NAME), "")
