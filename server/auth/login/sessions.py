"""Keep the sessions of browsers, each found by a secret that only its cookie holds, and the sign-ins under way.

A browser at a provider's page holds a ticket, in a cookie. `state`, `nonce` and the PKCE verifier are derived from it,
so none of them is stored.
"""

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolgate.server.auth.address_blocks import AddressLimiter
from toolgate.server.auth.login.accounts import Person, save_person
from toolgate.server.state import people_rows
from toolgate.server.state.grant_rows import hash_secret

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection, Store

LIFETIME = 12 * 3600.0  # seconds: a working day
PENDING_LIFETIME = 600.0  # seconds a person may take at the provider
MAX_PER_CONSENT = 8  # at a time: a person who tries again, in some tabs
PER_ADDRESS, PER_MINUTE = 30, 600  # a minute: of one address, which many may share, and of all
MAX_PENDING = 6_000  # of all at a time, by any number of servers: each holds a question of 4 KiB and more


@dataclass(frozen=True, slots=True)
class LoginSession:
    """`form_key` binds forms to the session. It stays when the same person signs in again: forms in other tabs work."""

    person: Person
    form_key: str


class LoginSessions:
    def __init__(self, store: "Store", now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now

    async def start(self, person: Person, before: str) -> str:
        """Start a session and return its secret; the one of `before`, which the browser sent, is ended."""
        secret, now = secrets.token_urlsafe(32), self._now()

        def put(connection: "Connection") -> None:
            held = people_rows.find_login(connection, hash_secret(before), now)
            people_rows.end_login(connection, hash_secret(before))
            first = hash_secret(secret)
            if held is not None and (held.issuer, held.subject) == (person.issuer, person.subject):
                first = held.first
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
            )
            save_person(connection, person, now)

        await self._store.transact(put)
        return secret

    async def find(self, secret: str) -> LoginSession | None:
        """Return the session of this secret, or None."""
        if not secret:
            return None
        hashed, now = hash_secret(secret), self._now()
        row = await self._store.transact(lambda connection: people_rows.find_login(connection, hashed, now))
        return None if row is None else LoginSession(Person(row.issuer, row.subject, row.name, row.email), row.first)

    async def end(self, secret: str) -> None:
        await self._store.transact(lambda connection: people_rows.end_login(connection, hash_secret(secret)))


class TooManyLoginsError(Exception):
    """Too many have been sent away just now, of this address or in all."""


@dataclass(frozen=True, slots=True)
class PendingLogin:
    """A browser at a provider. `consent_id`: the consent request it approved `scopes` of, "" when it only signs in.
    `select_account`: the provider is to ask which account; not stored."""

    provider: str
    consent_id: str
    scopes: frozenset[str]
    select_account: bool = False


class PendingLogins:
    """Browsers that are at another page, found by their state once."""

    def __init__(self, store: "Store", now: Callable[[], float] = time.time, most: int = MAX_PENDING) -> None:
        self._store = store
        self._now = now
        self._most = most
        self._limiter = AddressLimiter(PER_ADDRESS, PER_MINUTE, now)

    async def start(self, pending: PendingLogin, address: str = "") -> str:
        """Return the ticket for the browser's cookie. `address` is the browser's, "" where it is unknown. Raises
        TooManyLoginsError."""
        if address and not self._limiter.take(address):
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

        await self._store.transact(put)
        return ticket

    async def redeem(self, ticket: str) -> PendingLogin | None:
        """Once; None for a ticket that is used, too old, or none of ours."""
        hashed, now = hash_secret(derive_state(ticket)), self._now()
        row = await self._store.transact(lambda connection: people_rows.take_pending_login(connection, hashed, now))
        return None if row is None else PendingLogin(row.provider, row.question, frozenset(row.scopes.split()))


def derive_state(ticket: str) -> str:
    return derive_value(ticket, "state")


def derive_value(ticket: str, what: str) -> str:
    """Return one of the ticket's values, "state", "nonce" or "verifier": none of them tells another."""
    digest = hmac.new(ticket.encode(), what.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def pkce_challenge(ticket: str) -> dict[str, str]:
    """PKCE's parameters (RFC 7636 section 4.3)."""
    digest = hashlib.sha256(derive_value(ticket, "verifier").encode()).digest()
    return {"code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="), "code_challenge_method": "S256"}
