"""Browsers that are signed in: a session each, found by a secret that only its cookie holds. Knows no cookies."""

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolgate.server.auth.login.accounts import Person
from toolgate.server.principal import subject_of
from toolgate.server.state import grants, people

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection, Store

LIFETIME = 12 * 3600.0  # seconds: a working day


@dataclass(frozen=True, slots=True)
class Login:
    """`key` binds forms to the session. It stays when the same person signs in again: a form in another tab holds."""

    person: Person
    key: str


class Logins:
    def __init__(self, store: "Store", now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now

    async def begin(self, person: Person, before: str) -> str:
        """Sign in; `before` is the secret the browser came with, which is dead now. Gives the new one."""
        secret, now = secrets.token_urlsafe(32), self._now()

        def put(connection: "Connection") -> None:
            held = people.login(connection, hashed(before), now)
            people.end_login(connection, hashed(before))
            first = hashed(secret)
            if held is not None and (held.issuer, held.subject) == (person.issuer, person.subject):
                first = held.first
            people.add_login(
                connection,
                now,
                hash=hashed(secret),
                first=first,
                issuer=person.issuer,
                subject=person.subject,
                name=person.name,
                email=person.email,
                until=now + LIFETIME,
            )
            grants.put_person(
                connection,
                subject_of(person.issuer, person.subject),
                issuer=person.issuer,
                known_as=person.subject,
                name=person.name,
                email=person.email,
                seen_at=now,
            )

        await self._store.transact(put)
        return secret

    async def find(self, secret: str) -> Login | None:
        """Who is signed in with this secret."""
        if not secret:
            return None
        now = self._now()
        row = await self._store.transact(lambda connection: people.login(connection, hashed(secret), now))
        return None if row is None else Login(Person(row.issuer, row.subject, row.name, row.email), row.first)

    async def end(self, secret: str) -> None:
        await self._store.transact(lambda connection: people.end_login(connection, hashed(secret)))


def hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
