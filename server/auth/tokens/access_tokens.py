"""Issue and verify our access tokens, and cache verified ones.

A token costs a signature check at most every `FRESH` seconds, else a hash, or on a connection that repeats its head
only a look at the clock. Removed keys and denied tokens are read every `FRESH` seconds, so a change in any process
takes effect here within that time, and a denial in this process at once (`deny`). Source: RFC 9068; RFC 8725; MCP
2026-07-28 basic/authorization, "Token Handling".
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextvars import Context
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec.structs import replace

from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.jose import InvalidTokenError, JoseKey, UnknownKeyError
from toolgate.server.base.limits.state_budget import bounded_wait, start_budget
from toolgate.server.base.principals import scopes
from toolgate.server.base.principals.principal import Principal, derive_subject
from toolgate.tools.api.errors import ToolError

if TYPE_CHECKING:  # start-up: not needed with an external issuer
    from toolgate.server.auth.tokens.signing_keys import SigningKeys

log = logging.getLogger("toolgate.auth")

TYP = "at+jwt"
GRANT_CLAIM = "grant"  # our claim: the grant's id
GRANT_SCOPE_CLAIM = "grant_scope"  # our claim: the grant's scopes, if the token has fewer
OWN_ISSUER = "toolgate"  # issuer of our own Principals: their stored data outlives any public URL
LIFETIME = 15 * 60  # seconds an access token is valid: a revoked client loses it within that time
EXPIRY_MARGIN = 5  # seconds that clients are told less: they count from the answer, some to the last second
LEEWAY = 5.0  # seconds a token of ours may be from the future: replicas' clocks nearly agree
FRESH = 5.0  # seconds between two reads of keys and denials
RETRY = 1.0  # seconds between two reads for an unknown key: anyone can name one
PATIENCE = 0.25  # seconds to wait for a read: a state that does not answer must not hold those who don't need it
WITHOUT_KEYS = 3.0  # seconds to wait for the first read, which ends within them
MAX_VERIFIED = 10_000  # cached tokens, about 10 MiB; a client uses one an hour
MAX_NAME = 1_024  # characters of a subject or client


def name_principal(issuer: str, subject: str) -> str:
    """Return the name of the principal of the person whom the issuer calls `subject`."""
    return Principal(OWN_ISSUER, derive_subject(issuer, subject), "").name


class UnavailableError(Exception):
    """The verification keys can't be fetched now; try again after `wait` seconds."""

    def __init__(self, wait: float) -> None:
        super().__init__("the keys to verify tokens are unavailable: try again later")
        self.wait = wait


class TokenVerifier(Protocol):
    """Return the principal of a token."""

    def find_cached(self, key: bytes) -> "CachedToken | None":
        """Return a lately verified token by its `hash_token`, or None. Needs no await."""
        ...

    async def verify(self, token: str) -> Principal:
        """Return the principal. Raises InvalidTokenError, UnavailableError."""
        ...


def hash_token(token: bytes) -> bytes:
    """Return the key under which a token is cached. It does not reveal the token."""
    return sha256(token).digest()


class CachedToken(msgspec.Struct, eq=False):
    """A verified token: its key, and its expiry."""

    principal: Principal
    until: float
    kid: str
    jti: str


class TokenCache:
    """Verified tokens by their hash, without the token itself; the least recently used is dropped."""

    def __init__(self, most: int = MAX_VERIFIED) -> None:
        self._most = most
        self._held: OrderedDict[bytes, CachedToken] = OrderedDict()
        self._of_jti: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._held)

    def find(self, key: bytes, now: float) -> CachedToken | None:
        entry = self._held.get(key)
        if entry is None:
            return None
        if now >= entry.until:
            self._drop(key)
            return None
        self._held.move_to_end(key)
        return entry

    def add(self, token: bytes, entry: CachedToken) -> None:
        key = hash_token(token)
        if key in self._held:
            self._drop(key)
        self._held[key] = entry
        self._of_jti[entry.jti] = key
        if len(self._held) > self._most:
            self._drop(next(iter(self._held)))

    def clear(self) -> None:
        for key in list(self._held):
            self._drop(key)

    def keep(self, kids: Collection[str]) -> None:
        """Drop the tokens that other keys than these signed."""
        for key in [key for key, entry in self._held.items() if entry.kid not in kids]:
            self._drop(key)

    def deny(self, jtis: Iterable[str]) -> None:
        """Drop these tokens, whatever else is cached."""
        for jti in jtis:
            key = self._of_jti.get(jti)
            if key is not None:
                self._drop(key)

    def _drop(self, key: bytes) -> None:
        entry = self._held.pop(key)
        if self._of_jti.get(entry.jti) == key:
            del self._of_jti[entry.jti]


class AccessToken(msgspec.Struct, frozen=True):
    """A new access token. Only `token` is secret; `repr` shows none of it."""

    token: str
    jti: str
    expires: int  # seconds since 1970

    def __repr__(self) -> str:
        return f"<access token {self.jti}>"


class OwnTokens:
    """Our access tokens. `audience`: names they are valid for; new ones get the first. `denied()` returns the `jti` of
    all denied, unexpired tokens."""

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
        self.minted_count = 0  # tokens, since the start
        self._verified = TokenCache()
        self._refreshed_at = float("-inf")  # last read of keys and denials
        self._reading: asyncio.Task[bool] | None = None
        self._reading_since = 0.0
        self.announce: Callable[[Collection[str]], None] = lambda _: None  # called with the ids that are denied here

    async def mint(self, subject: str, client: str, granted: Iterable[str]) -> AccessToken:
        """Return a new token, signed by the active key."""
        return self.mint_by_key(await self._source.active(), subject, client, granted)

    def mint_by_key(self, key: JoseKey, subject: str, client: str, granted: Iterable[str], **more: Any) -> AccessToken:
        """Return a new token, signed by `key`, without waiting: for use inside a transaction. `more` claims may not
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
        """Refuse tokens with these ids from now on. The caller has stored them for `denied`."""
        self.note_denied(jtis)
        if jtis:
            self.announce(jtis)

    def note_denied(self, jtis: Collection[str]) -> None:
        """Refuse tokens with these ids: another process denied them."""
        self._denied.update(jtis)
        self._verified.deny(jtis)

    def refresh_soon(self) -> None:
        """Read keys and denials again before the next token is verified."""
        self._refreshed_at = float("-inf")

    def find_cached(self, key: bytes) -> CachedToken | None:
        now = self._now()
        return self._verified.find(key, now) if 0 <= now - self._refreshed_at < FRESH else None

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
        """Return the claims of a valid token of ours. Raises InvalidTokenError, UnavailableError."""
        await self._refresh(FRESH)
        if not self._keys:
            raise UnavailableError(RETRY)
        try:
            claims = self._read(token)
        except UnknownKeyError:
            if not await self._refresh(RETRY):  # its key may be brand-new
                raise UnavailableError(RETRY) from None
            claims = self._read(token)
        if self._now() >= claims["exp"]:  # no leeway, so that a denial can be dropped at the expiry
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
        """Refuse what we can't have issued, though our key signed it: a stolen retired key makes no token that is valid
        longer than our last one."""
        issued = claims.get("iat")
        if issued is None or claims["exp"] - issued > self.lifetime + LEEWAY:
            raise InvalidTokenError("the token is valid for too long")
        retired = (key.retired_at for key in self._keys if key.kid == kid and key.retired_at is not None)
        if any(issued > moment + LEEWAY for moment in retired):
            raise InvalidTokenError("the token was issued after its key ended")

    async def _refresh(self, age: float) -> bool:
        """Read keys and denials, unless that was done less than `age` seconds ago. Return whether they were read.

        While the state can't be read, the last keys and denials stay in use. Requests wait for it at most `PATIENCE`
        seconds.
        """
        if 0 <= self._now() - self._refreshed_at < age:  # a clock may be set back
            return True
        loop = asyncio.get_running_loop()
        if self._reading is None:
            self._reading = loop.create_task(self._read_state(), context=Context())  # no call's budget bounds it
            self._reading_since = loop.time()
        reading = self._reading
        patience = PATIENCE if self._keys else WITHOUT_KEYS
        with contextlib.suppress(TimeoutError):
            async with bounded_wait(max(0.0, self._reading_since + patience - loop.time())):
                await asyncio.wait([reading])
        return reading.done() and not reading.cancelled() and reading.result()

    async def _read_state(self) -> bool:
        """Read keys and denials, and return whether that succeeded."""
        start_budget()  # the requests that begin later wait for another reading
        try:
            keys, denied = await self._source.public(), set(await self._list_denied())
        except Exception as error:
            if isinstance(error, ToolError):
                log.warning("keys and revoked tokens could not be read, the known ones stay in use: %s", error)
            else:
                log.exception("keys and revoked tokens could not be read: the known ones stay in use")
            self._refreshed_at = self._now() - FRESH + RETRY  # again soon, but not at every request
            return False
        finally:
            self._reading = None
        fresh, kids = denied - self._denied, {key.kid for key in keys}
        if kids != {key.kid for key in self._keys}:
            self._verified.keep(kids)
        self._verified.deny(fresh)
        self._keys, self._denied = keys, denied
        self._refreshed_at = self._now()
        return True


def principal_from_claims(claims: dict[str, Any]) -> Principal:
    """Return the principal of a verified token's claims. Raises InvalidTokenError."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_NAME:
        raise InvalidTokenError("the token names no subject")
    if "cnf" in claims:  # bound to a key or certificate (RFC 7800), so no bearer token
        raise InvalidTokenError("the token is bound to a key, which this server can't check")
    granted = scopes.parse_scopes(claims.get("scope")) | scopes.parse_scopes(claims.get("scp"))
    return Principal(str(claims["iss"]), subject, _client(claims), granted)


def _client(claims: dict[str, Any]) -> str:
    """Return the client, under RFC 9068's name, OpenID Connect's, or those of two large providers."""
    named = (claims.get(name) for name in ("client_id", "azp", "cid", "appid"))
    return next((name for name in named if isinstance(name, str) and len(name) <= MAX_NAME), "")
