"""The rows of OAuth: codes, grants and their refresh tokens, consents. Each function runs inside a
transaction; secrets come here as their digests. Times are seconds since the epoch.
"""

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from toolgate.server.state import tables
from toolgate.server.state.people_rows import BUILT_IN

if TYPE_CHECKING:
    from sqlalchemy import Connection

KEEP_CODES = 86_400.0  # seconds a code is remembered after its end, so that its replay is noticed
KEEP_ENDED = 86_400.0  # seconds a grant is kept after its end
MAX_VALUES = 10_000  # of one statement: SQLite takes 32,766
KEEP_REDEEMED = 600.0  # seconds a refresh token is kept after its use: longer than its successor can be had by it


@dataclass(frozen=True, slots=True)
class Grant:
    """What a person has allowed a client; `id` is also the first part of its access tokens' ids."""

    id: str
    client: str
    subject: str
    scope: str
    resource: str
    redirect_uri: str
    family: str = field(repr=False)
    made_at: float
    used_at: float | None
    expires_at: float
    revoked_at: float | None

    def is_valid(self, now: float) -> bool:
        return self.revoked_at is None and now < self.expires_at


def hash_secret(secret: str) -> str:
    """Return what is stored of a secret. No salt: 256 random bits are found in no dictionary."""
    return hashlib.sha256(secret.encode()).hexdigest()


# Grants and codes


def add_grant(connection: "Connection", now: float, lifetime: float, **row: Any) -> str:
    """A new grant's id."""
    id = secrets.token_urlsafe(12)
    of = tables.grant
    connection.execute(
        of.insert().values(id=id, family=secrets.token_hex(32), made_at=now, expires_at=now + lifetime, **row)
    )
    return id


def find_grant(connection: "Connection", id: str) -> Grant | None:
    of = tables.grant
    row = connection.execute(of.select().where(of.c.id == id)).one_or_none()
    return None if row is None else Grant(*row)


def list_used_grants(connection: "Connection", subject: str | None, now: float) -> list[Grant]:
    """Those of a person, or with None of everybody, that hold and were used; the newest first."""
    of = tables.grant
    rows = of.select().where(of.c.revoked_at.is_(None), of.c.used_at.is_not(None), of.c.expires_at > now)
    rows = rows.where(of.c.subject == subject) if subject is not None else rows
    return [Grant(*row) for row in connection.execute(rows.order_by(of.c.made_at.desc()))]


def mark_grant_used(connection: "Connection", id: str, now: float) -> None:
    of = tables.grant
    connection.execute(of.update().where(of.c.id == id).values(used_at=now))


def revoke_grant(connection: "Connection", id: str, now: float) -> list[str]:
    """Revoke a grant, with its code and all its tokens. Gives the ids of the access tokens that are denied by it."""
    connection.execute(tables.grant.update().where(tables.grant.c.id == id).values(revoked_at=now))
    connection.execute(tables.refresh_token.delete().where(tables.refresh_token.c.grant_id == id))
    of = tables.access_token
    held = of.update().where(of.c.grant_id == id, of.c.expires_at > now).values(denied=True).returning(of.c.jti)
    return list(connection.execute(held).scalars())


def list_unrevoked_grants(
    connection: "Connection", subject: str | None = None, client: str | None = None
) -> list[Grant]:
    """All that are not revoked, their code may still wait: a person's, a client's, or with neither everybody's."""
    of = tables.grant
    rows = of.select().where(of.c.revoked_at.is_(None))
    rows = rows.where(of.c.subject == subject) if subject is not None else rows
    rows = rows.where(of.c.client == client) if client is not None else rows
    return [Grant(*row) for row in connection.execute(rows)]


def deny_grantless_tokens(
    connection: "Connection", now: float, *, subject: str | None = None, client: str | None = None
) -> list[str]:
    """Deny the access tokens that came of no grant: those for a subject, or those a client got. Gives their ids."""
    of = tables.access_token
    own = of.update().where(of.c.grant_id.is_(None), of.c.expires_at > now)
    own = own.where(of.c.subject == subject) if subject is not None else own
    own = own.where(of.c.client == client) if client is not None else own
    return list(connection.execute(own.values(denied=True).returning(of.c.jti)).scalars())


def deny_tokens_of_subjects(connection: "Connection", subjects: Collection[str], now: float) -> list[str]:
    """Deny all access tokens for these subjects, whatever they came of. Gives their ids."""
    of = tables.access_token
    good = (of.c.expires_at > now) & of.c.denied.is_(False)
    held = connection.execute(of.select().with_only_columns(of.c.subject).where(good).distinct()).scalars()
    denied: list[str] = []
    for subject in set(held).intersection(subjects):  # one by one: a statement takes only so many values
        done = of.update().where(of.c.subject == subject, good).values(denied=True).returning(of.c.jti)
        denied += connection.execute(done).scalars()
    return denied


def find_valid_grants(connection: "Connection", subjects: Collection[str], now: float) -> list[Grant]:
    """The grants of these subjects that hold. One whose code nobody redeemed is none yet."""
    of = tables.grant
    return _find_valid(connection, of.c.subject, subjects, now)


def find_valid_grants_by_id(connection: "Connection", ids: Collection[str], now: float) -> list[Grant]:
    """The same, of these ids."""
    return _find_valid(connection, tables.grant.c.id, ids, now)


def _find_valid(connection: "Connection", column: Any, values: Collection[str], now: float) -> list[Grant]:
    of, listed, found = tables.grant, list(values), list[Grant]()
    live = of.select().where(of.c.revoked_at.is_(None), of.c.used_at.is_not(None), of.c.expires_at > now)
    for start in range(0, len(listed), MAX_VALUES):
        rows = connection.execute(live.where(column.in_(listed[start : start + MAX_VALUES])))
        found += [Grant(*row) for row in rows]
    return found


def add_code(connection: "Connection", code: str, **row: Any) -> None:
    connection.execute(tables.code.insert().values(code=code, **row))


def find_code(connection: "Connection", code: str) -> Any:
    """The row (grant_id, challenge, expires_at, redeemed_at), or None."""
    of = tables.code
    return connection.execute(of.select().where(of.c.code == code)).one_or_none()


def redeem_code(connection: "Connection", code: str, now: float) -> bool:
    """Whether this was the first time."""
    of = tables.code
    first = of.update().where(of.c.code == code, of.c.redeemed_at.is_(None)).values(redeemed_at=now)
    return connection.execute(first).rowcount == 1


# Refresh tokens


def add_refresh_token(connection: "Connection", token: str, grant_id: str) -> None:
    connection.execute(tables.refresh_token.insert().values(token=token, grant_id=grant_id))


def find_refresh_token(connection: "Connection", token: str) -> Any:
    """The row (grant_id, redeemed_at, salt), or None."""
    of = tables.refresh_token
    return connection.execute(of.select().where(of.c.token == token)).one_or_none()


def redeem_refresh_token(connection: "Connection", token: str, now: float, salt: bytes) -> bool:
    """Whether this was the first time."""
    of = tables.refresh_token
    first = of.update().where(of.c.token == token, of.c.redeemed_at.is_(None)).values(redeemed_at=now, salt=salt)
    return connection.execute(first).rowcount == 1


# Consents and people


def save_consent(connection: "Connection", now: float, scope: str, **key: str) -> None:
    """Remember what was approved: `key` is subject, client, redirect_uri and resource."""
    connection.execute(tables.upsert(tables.consent, key, {"scope": scope, "given_at": now}))


def find_consent(connection: "Connection", **key: str) -> str | None:
    """The scope that was approved for exactly this, or None."""
    of = tables.consent
    found = connection.execute(of.select().with_only_columns(of.c.scope).filter_by(**key)).scalar_one_or_none()
    return None if found is None else str(found)


def forget_consents(connection: "Connection", subject: str, client: str) -> None:
    of = tables.consent
    connection.execute(of.delete().where(of.c.subject == subject, of.c.client == client))


def save_person(connection: "Connection", subject: str, **row: Any) -> None:
    """Note whom a subject stands for: issuer, known_as, name, seen_at; and email, unless it is to stay as it was."""
    connection.execute(tables.upsert(tables.person, {"subject": subject}, row))


def find_person(connection: "Connection", subject: str) -> Any:
    """The row (issuer, known_as, name, email), or None."""
    of = tables.person
    return connection.execute(of.select().where(of.c.subject == subject)).one_or_none()


def list_people(connection: "Connection") -> list[Any]:
    """The rows (subject, issuer, known_as, name, email) of all who have been here."""
    return list(connection.execute(tables.person.select()))


def list_external_people(connection: "Connection") -> list[Any]:
    """The rows of all who have no account here."""
    of = tables.person
    return list(connection.execute(of.select().where(of.c.issuer != BUILT_IN).order_by(of.c.issuer, of.c.name)))


def find_people(connection: "Connection", name: str) -> list[Any]:
    """The rows (subject, issuer, known_as, name) of whom that may mean: a subject, or a name."""
    of = tables.person
    meant = (of.c.subject == name) | (of.c.name == name) | (of.c.known_as == name)
    return list(connection.execute(of.select().where(meant).order_by(of.c.issuer, of.c.known_as)))


# What counts until a time


def count_used_assertions(connection: "Connection", client: str, now: float) -> int:
    """How many assertions of a client can't be forgotten yet."""
    of = tables.used_id
    live = tables.select(tables.func.count()).select_from(of).where(of.c.client == client, of.c.expires_at > now)
    return int(connection.execute(live).scalar_one())


def mark_used(connection: "Connection", id: str, expires_at: float, client: str | None = None) -> bool:
    """Whether `id`, an assertion or a question, was not used before. From now on it was."""
    row = tables.used_id.insert().prefix_with("OR IGNORE").values(id=id, client=client, expires_at=expires_at)
    return connection.execute(row).rowcount == 1


def is_used(connection: "Connection", id: str) -> bool:
    of = tables.used_id
    return connection.execute(of.select().where(of.c.id == id)).one_or_none() is not None


def add_access_token(connection: "Connection", **row: Any) -> None:
    """Note a new access token: jti, client, subject, grant_id, expires_at."""
    connection.execute(tables.access_token.insert().values(denied=False, **row))


def count_access_tokens(connection: "Connection", subject: str, now: float) -> dict[str, int]:
    """How many access tokens for a subject have not expired, denied ones too, by the client that got them."""
    of = tables.access_token
    counted = tables.select(of.c.client, tables.func.count()).where(of.c.subject == subject, of.c.expires_at > now)
    return {row[0]: row[1] for row in connection.execute(counted.group_by(of.c.client))}


def find_access_token(connection: "Connection", jti: str) -> Any:
    """The row (client, subject, grant_id, expires_at, denied), or None."""
    of = tables.access_token
    return connection.execute(of.select().where(of.c.jti == jti)).one_or_none()


def deny_access_token(connection: "Connection", jti: str) -> None:
    """Deny one access token."""
    of = tables.access_token
    connection.execute(of.update().where(of.c.jti == jti).values(denied=True))


def list_denied_tokens(connection: "Connection", now: float) -> list[str]:
    """The ids of all access tokens that are denied and have not expired."""
    of = tables.access_token
    held = of.select().with_only_columns(of.c.jti).where(of.c.denied, of.c.expires_at > now)
    return list(connection.execute(held).scalars())


def list_active_clients(connection: "Connection", subjects: Collection[str], now: float) -> set[tuple[str, str]]:
    """Subject and client of the access tokens for these subjects that have neither expired nor been denied."""
    of = tables.access_token
    held = of.select().with_only_columns(of.c.subject, of.c.client)
    held = held.where(of.c.subject.in_(subjects), of.c.expires_at > now, of.c.denied.is_(False))
    return {(subject, client) for subject, client in connection.execute(held)}


def remove_expired(connection: "Connection", now: float) -> None:
    """Take away what is over."""
    for of in (tables.used_id, tables.access_token):
        connection.execute(of.delete().where(of.c.expires_at <= now))
    of = tables.grant
    over = (of.c.expires_at < now - KEEP_ENDED) | (of.c.revoked_at < now - KEEP_ENDED)
    waits = tables.code.select().with_only_columns(tables.code.c.grant_id).where(tables.code.c.expires_at > now)
    unused = of.c.used_at.is_(None) & of.c.id.not_in(waits) & (of.c.made_at < now - KEEP_CODES)
    connection.execute(of.delete().where(over | unused))
    connection.execute(tables.code.delete().where(tables.code.c.expires_at < now - KEEP_CODES))
    connection.execute(tables.refresh_token.delete().where(tables.refresh_token.c.redeemed_at < now - KEEP_REDEEMED))
