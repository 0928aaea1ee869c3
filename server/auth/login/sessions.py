"""Keep browsers' sessions, each found by the secret in its cookie, and the sign-ins that are waiting at a provider.

A waiting browser holds a ticket in a cookie. `state`, `nonce` and the PKCE verifier are derived from it, so none of
them is stored.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from toolgate.server.auth.address_blocks import AddressLimiter
from toolgate.server.auth.login.accounts import Person, save_person
from toolgate.server.base.bus.memory_keys import MemoryKeys
from toolgate.server.base.pkce import create_challenge
from toolgate.server.state.rows import people as people_rows
from toolgate.server.state.rows.grants import hash_secret

if TYPE_CHECKING:
    from toolgate.server.base.bus.bus import Counters
    from toolgate.server.state.store import Connection, Store

LIFETIME = 12 * 3600.0  # seconds: a working day
PENDING_LIFETIME = 600.0  # seconds a person may spend at the provider
ID_LENGTH = 16  # characters of a session's digest, which name it to its person
MAX_PER_CONSENT = 8  # at a time: a person may retry in several tabs
PER_ADDRESS, PER_MINUTE = 30, 600  # a minute: per address, which many people may share, and in total
MAX_PENDING = 6_000  # waiting in total, for all servers on the state: each holds a consent id of 4 KiB or more


class LoginSession(msgspec.Struct, frozen=True):
    """A browser's session. `form_key` binds forms to it, and stays when the person signs in again in another tab."""

    person: Person
    form_key: str


class SignedInBrowser(msgspec.Struct, frozen=True):
    """A browser that is signed in, for its person. `id` can't be used as its secret; `since` is in seconds since the
    epoch; `browser` is the name that the browser sends, or ""."""

    id: str
    since: float
    browser: str
    is_own: bool  # the one that asks


class LoginSessions:
    def __init__(self, store: "Store", now: Callable[[], float] | None = None) -> None:
        self._store = store
        self._now = now or store.now

    async def start(self, person: Person, before: str, browser: str = "") -> str:
        """Start a session and return its secret; end the browser's earlier session `before`. `browser` is its name."""
        secret, now = secrets.token_urlsafe(32), self._now()

        def put(connection: "Connection") -> None:
            row = people_rows.find_login(connection, hash_secret(before), now)
            people_rows.end_login(connection, hash_secret(before))
            first = hash_secret(secret)
            if row is not None and (row.issuer, row.subject) == (person.issuer, person.subject):
                first = row.first
            people_rows.add_login(
                connection,
                now,
                hash=hash_secret(secret),
                first=first,
                issuer=person.issuer,
                subject=person.subject,
                name=person.name,
                email=person.email,
                until=now + LIFETIME,
                browser=browser or None,
            )
            save_person(connection, person, now)

        await self._store.transact(put, alone="accounts")
        return secret

    async def find(self, secret: str) -> LoginSession | None:
        """Return the session of this secret, or None."""
        if not secret:
            return None
        hashed, now = hash_secret(secret), self._now()
        row = await self._store.read(lambda connection: people_rows.find_login(connection, hashed, now))
        return None if row is None else LoginSession(Person(row.issuer, row.subject, row.name, row.email), row.first)

    async def list_browsers(self, person: Person, secret: str) -> list[SignedInBrowser]:
        """Return the browsers in which a person is signed in, the newest first. `secret` is that of the browser that
        asks."""
        now, own = self._now(), hash_secret(secret)
        rows = await self._store.read(
            lambda connection: people_rows.list_logins(connection, person.issuer, person.subject, now)
        )
        return [
            SignedInBrowser(row.hash[:ID_LENGTH], row.until - LIFETIME, row.browser or "", row.hash == own)
            for row in rows
        ]

    async def end_browser(self, person: Person, id: str) -> bool:
        """Sign a person's browser out, and return whether it was signed in."""
        now = self._now()

        def end(connection: "Connection") -> bool:
            rows = people_rows.list_logins(connection, person.issuer, person.subject, now)
            named = [row.hash for row in rows if row.hash[:ID_LENGTH] == id]
            for hashed in named:
                people_rows.end_login(connection, hashed)
            return bool(named)

        return await self._store.transact(end, alone="accounts")

    async def end(self, secret: str) -> None:
        await self._store.transact(
            lambda connection: people_rows.end_login(connection, hash_secret(secret)), alone=None
        )


class TooManyLoginsError(Exception):
    """Too many browsers were sent to a provider lately, from this address or in total."""


class PendingLogin(msgspec.Struct, frozen=True):
    """A browser at a provider. `consent_id`: the consent request it approved `scopes` of, "" for a plain sign-in.
    `select_account`: the provider should ask which account; not stored."""

    provider: str
    consent_id: str
    scopes: frozenset[str]
    select_account: bool = False


class PendingLogins:
    """Browsers waiting at a provider, each found once by its state."""

    def __init__(
        self,
        store: "Store",
        now: Callable[[], float] | None = None,
        most: int = MAX_PENDING,
        counters: "Counters | None" = None,
    ) -> None:
        self._store = store
        self._now = now or store.now
        self._most = most
        counters = counters if counters is not None else MemoryKeys(self._now)
        self._limiter = AddressLimiter("sign-ins", PER_ADDRESS, PER_MINUTE, counters)

    async def start(self, pending: PendingLogin, address: str = "") -> str:
        """Return the ticket for the cookie. `address` is the browser's, "" if unknown. Raises TooManyLoginsError."""
        if address and not await self._limiter.take(address):
            raise TooManyLoginsError
        ticket, now = secrets.token_urlsafe(32), self._now()

        def put(connection: "Connection") -> None:
            people_rows.add_pending_login(
                connection,
                now,
                hash=hash_secret(derive_state(ticket)),
                provider=pending.provider,
                question=pending.consent_id,
                scopes=" ".join(sorted(pending.scopes)),
                until=now + PENDING_LIFETIME,
            )
            people_rows.trim_pending_logins(connection, pending.consent_id, MAX_PER_CONSENT, self._most)

        await self._store.transact(put, alone="accounts")
        return ticket

    async def redeem(self, ticket: str) -> PendingLogin | None:
        """Return what waits under the ticket, once; None if it is used, expired or forged."""
        hashed, now = hash_secret(derive_state(ticket)), self._now()
        row = await self._store.transact(
            lambda connection: people_rows.take_pending_login(connection, hashed, now), alone=None
        )
        return None if row is None else PendingLogin(row.provider, row.question, frozenset(row.scopes.split()))


def derive_state(ticket: str) -> str:
    return derive_value(ticket, "state")


def derive_value(ticket: str, what: str) -> str:
    """Return one of the ticket's values, "state", "nonce" or "verifier". None of them reveals another."""
    digest = hmac.new(ticket.encode(), what.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def pkce_challenge(ticket: str) -> dict[str, str]:
    """Return PKCE's parameters (RFC 7636 section 4.3)."""
    return create_challenge(derive_value(ticket, "verifier"))
