"""Fetch an external issuer's metadata and keys, and verify its access tokens (`--auth URL`).

A token with an unknown key may be valid if the key is brand-new. A refusal would make a person sign in again for
nothing, so the caller is told to retry. A token is refused once a fetch has not found its key. Source: RFC 7517; RFC
8414 section 3; OpenID Connect Discovery 1.0 section 4; RFC 9068; MCP 2026-07-28 basic/authorization, "Authorization
Server Discovery".
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.access_tokens import (
    CachedToken,
    TokenCache,
    UnavailableError,
    principal_from_claims,
)
from toolgate.server.auth.tokens.jose import InvalidTokenError, JoseKey, UnknownKeyError
from toolgate.server.base.principals.principal import Principal
from toolgate.tools.api.context.services import Page
from toolgate.tools.api.errors import ToolError

log = logging.getLogger("toolgate.auth")

LEEWAY = 60.0  # seconds its clock may differ from ours
ALGORITHMS = ("ES256", "RS256", "EdDSA", "Ed25519")
TYPES = ("at+jwt", "jwt", "")  # few issuers know RFC 9068; an ID token is recognised by its claims
OTHER_TOKENS = frozenset(("nonce", "at_hash", "c_hash", "s_hash", "events"))  # claims of ID, logout and event tokens
OTHER_KINDS = {"typ": ("ID", "Refresh", "Offline", "Logout"), "token_use": ("id",)}  # Keycloak's, Cognito's

RENEW = 600.0  # seconds between two fetches of the keys: a removed key is refused after that
PAUSE = 30.0  # seconds between two fetches for an unknown key: anyone can name one
RETRY = 5.0  # seconds between two fetches while there are no keys
FETCH_TIME = 5.0  # seconds for one document
PATIENCE = 2.5  # seconds that requests wait for all documents together
MAX_WANTED = 1_000  # ids of unknown keys in memory: anyone can name them
MAX_DOCUMENT = 512 * 1024  # bytes of one document; the largest known are a tenth of it


class Fetch(Protocol):
    """What `tools.web.Web.fetch` does. Raises ToolError."""

    async def __call__(
        self, url: str, *, headers: Mapping[str, str] | None, limit: int, timeout: float, redirects: int
    ) -> Page: ...


class DocumentError(Exception):
    """An issuer's document could not be fetched, or is invalid. The text says why."""


class IssuerKeys:
    """One issuer's keys, found by its metadata.

    They stay in use until there are newer ones, so an unreachable issuer invalidates no token. They are fetched every
    `RENEW` seconds while tokens come, and for an unknown key at most every `PAUSE`.
    """

    def __init__(self, issuer: str, fetch: Fetch, now: Callable[[], float]) -> None:
        self.issuer = issuer
        self.keys: list[JoseKey] = []
        self.own_audiences: frozenset[str] = frozenset((issuer,))  # of its own, which a token may name besides ours
        self._fetch = fetch
        self._now = now
        self._jwks_uri: str | None = None
        self.fetch_count = 0  # finished fetches of the keys
        self._tried = float("-inf")
        self._renewing: asyncio.Task[None] | None = None
        self._renewing_since = 0.0
        self._wanted: set[str] = set()  # ids of keys to look for at the next fetch
        self._absent: set[str] = set()  # ids missing at the last fetch

    def is_due(self, now: float) -> bool:
        """Return whether the keys should be fetched again; also if the clock was set back."""
        return not self._tried_within(RENEW, now)

    async def ensure_keys(self) -> None:
        """Fetch the keys if there are none, and renew them when due. Raises UnavailableError."""
        if self.keys:
            if self.is_due(self._now()):
                self._renew()  # meanwhile the present ones are used
            return
        await self.refresh_keys(RETRY)
        if not self.keys:
            raise UnavailableError(RETRY)

    async def refresh_keys(self, pause: float) -> None:
        """Fetch the keys, unless that was tried less than `pause` seconds ago. Concurrent callers share one fetch.

        Raises UnavailableError `PATIENCE` seconds after an issuer that does not answer was asked. The fetch goes on.
        """
        if self._renewing is None and self._tried_within(pause, self._now()):
            return
        renewing = self._renew()
        left = self._renewing_since + PATIENCE - asyncio.get_running_loop().time()
        done, _ = await asyncio.wait([renewing], timeout=max(0.0, left))
        if not done:
            raise UnavailableError(RETRY)

    async def seek_key(self, kid: str) -> None:
        """Look for an unknown key. Raises UnavailableError if it is too soon."""
        now = self._now()
        if self._renewing is None and self._tried_within(PAUSE, now):
            if kid in self._absent:
                return
            if len(self._wanted) < MAX_WANTED:
                self._wanted.add(kid)
            raise UnavailableError(self._tried + PAUSE - now)
        await self.refresh_keys(PAUSE)

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing

    def _tried_within(self, seconds: float, now: float) -> bool:
        return 0 <= now - self._tried < seconds

    def _renew(self) -> "asyncio.Task[None]":
        if self._renewing is None:
            self._renewing_since = asyncio.get_running_loop().time()
            self._tried = self._now()
            self._absent, self._wanted = self._wanted, set()
            self._renewing = asyncio.get_running_loop().create_task(self._load())
            self._renewing.add_done_callback(self._on_renewed)
        return self._renewing

    def _on_renewed(self, task: "asyncio.Task[None]") -> None:
        self._renewing = None
        self.fetch_count += 1
        if not task.cancelled() and task.exception() is not None:
            log.error("the keys of %s could not be read", self.issuer, exc_info=task.exception())

    async def _load(self) -> None:
        try:
            if self._jwks_uri is None:
                metadata = await discover(self._document, self.issuer, metadata_urls(self.issuer))
                self._jwks_uri = find_endpoint(metadata, "jwks_uri")
                userinfo = metadata.get("userinfo_endpoint")
                self.own_audiences = frozenset((self.issuer, userinfo if isinstance(userinfo, str) else self.issuer))
            keys = jose.parse_jwks(await self._document(self._jwks_uri))
            if not keys:
                raise DocumentError(f"{self._jwks_uri} has no key that can be used")
        except (DocumentError, ValueError) as error:
            self._jwks_uri = None  # read the metadata again next time: it may have moved
            log.warning("--auth: %s", error)
            return
        self._absent |= {key.kid for key in self.keys}.difference(key.kid for key in keys)
        self.keys = keys

    async def _document(self, url: str) -> Any:
        return await fetch_json(self._fetch, url, limit=MAX_DOCUMENT, timeout=FETCH_TIME)


async def fetch_json(
    fetch: Callable[..., Awaitable[Page]],
    url: str,
    *,
    limit: int,
    timeout: float,
    headers: Mapping[str, str] | None = None,
    **request: Any,
) -> Any:
    """Return the JSON at a URL, or of the answer to a request. Raises DocumentError, which names the URL."""
    name = url.partition("?")[0]
    accepted = {"accept": "application/json", **(headers or {})}
    try:
        page = await fetch(url, headers=accepted, limit=limit, timeout=timeout, redirects=0, **request)
        if page.status != 200:
            raise DocumentError(f"{name} answered {page.status}")
        if page.truncated:
            raise DocumentError(f"{name} is larger than {limit // 1024} KiB")
        return msgspec.json.decode(page.body)
    except ToolError as error:
        raise DocumentError(error.text) from None
    except (ValueError, RecursionError):
        raise DocumentError(f"{name} is not JSON") from None


async def discover(fetch: Callable[[str], Awaitable[Any]], issuer: str, urls: Iterable[str]) -> Mapping[str, Any]:
    """Return the issuer's metadata, from the first of these URLs that has it. It must name the issuer (Discovery
    section 4.3). Raises DocumentError."""
    faults: list[str] = []
    for url in urls:
        try:
            document = await fetch(url)
        except DocumentError as error:
            faults.append(str(error))
            continue
        if isinstance(document, dict) and document.get("issuer") == issuer:
            return document
        other = document.get("issuer") if isinstance(document, dict) else None
        faults.append(f"{url} is the metadata of another issuer, {other!r}"[:300])
    raise DocumentError(f"the issuer {issuer} has no metadata: {'; '.join(faults)}")


def find_endpoint(metadata: Mapping[str, Any], name: str) -> str:
    """Return a URL from an issuer's metadata: https, or http if the issuer uses it. Raises DocumentError."""
    url, issuer = metadata.get(name), str(metadata.get("issuer"))
    if not isinstance(url, str) or urlsplit(url).scheme not in ("https", urlsplit(issuer).scheme):
        raise DocumentError(f"the metadata of {issuer} has no usable {name}")
    return url


def metadata_urls(issuer: str) -> list[str]:
    """Return the URLs of an issuer's metadata, in the order in which MCP clients try them."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    urls = [f"{origin}/.well-known/{name}{path}" for name in ("oauth-authorization-server", "openid-configuration")]
    return [*urls, f"{origin}{path}/.well-known/openid-configuration"] if path else urls


class ExternalTokens:
    """Verify the tokens of `issuer` for one of `audience`."""

    def __init__(
        self, issuer: str, audience: Sequence[str], fetch: Fetch, *, now: Callable[[], float] = time.time
    ) -> None:
        self._issuer = IssuerKeys(issuer, fetch, now)
        self._audience = tuple(audience)
        self._now = now
        self._verified = TokenCache()
        self._keys: list[JoseKey] = []  # those that verified the cached tokens

    def find_cached(self, key: bytes) -> CachedToken | None:
        now = self._now()
        return self._verified.find(key, now) if self._has_keys(now) else None

    def _has_keys(self, now: float) -> bool:
        """Return whether the keys that verified the cached tokens are the issuer's, as far as is known."""
        return self._issuer.keys is self._keys and not self._issuer.is_due(now)

    async def verify(self, token: str) -> Principal:
        issuer, looks = self._issuer, self._issuer.fetch_count
        kid = jose.check_header(token, TYPES, ALGORITHMS, issuer.issuer).get("kid", "")  # before any fetch
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
        """Drop tokens verified with earlier keys, which the issuer may have removed."""
        if self._issuer.keys is not self._keys:
            self._keys = self._issuer.keys
            self._verified.clear()


def _check_kind(claims: Mapping[str, Any]) -> None:
    """Raise InvalidTokenError for a token that is no access token."""
    if not OTHER_TOKENS.isdisjoint(claims):
        raise InvalidTokenError("the token is not an access token")
    if any(claims.get(name) in kinds for name, kinds in OTHER_KINDS.items() if isinstance(claims.get(name), str)):
        raise InvalidTokenError("the token is not an access token")
