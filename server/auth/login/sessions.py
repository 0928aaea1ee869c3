"""Keep the sessions of browsers: each is found by a secret that only its cookie holds."""

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolgate.server.auth.login.accounts import Person
from toolgate.server.principal import derive_subject
from toolgate.server.state import grant_rows, people_rows

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection, Store

LIFETIME = 12 * 3600.0  # seconds: a working day


@dataclass(frozen=True, slots=True)
class LoginSession:
    """`key` binds forms to the session. It stays when the same person signs in again: a form in another tab holds."""

    person: Person
    form_key: str


class LoginSessions:
    def __init__(self, store: "Store", now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now

    async def start(self, person: Person, before: str) -> str:
        """Start a session and return its secret; `previous_secret`, which the browser sent, is ended."""
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
            grant_rows.save_person(
                connection,
                derive_subject(person.issuer, person.subject),
                issuer=person.issuer,
                known_as=person.subject,
                name=person.name,
                email=person.email,
                seen_at=now,
            )

        await self._store.transact(put)
        return secret

    async def find(self, secret: str) -> LoginSession | None:
        """Return the session of this secret, or None."""
        if not secret:
            return None
        now = self._now()
        row = await self._store.transact(
            lambda connection: people_rows.find_login(connection, hash_secret(secret), now)
        )
        return None if row is None else LoginSession(Person(row.issuer, row.subject, row.name, row.email), row.first)

    async def end(self, secret: str) -> None:
        await self._store.transact(lambda connection: people_rows.end_login(connection, hash_secret(secret)))


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
