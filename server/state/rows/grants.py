"""Read and write the rows of OAuth grants, with their codes, tokens and consents, and of the people behind them.

Each function runs inside a transaction. Secrets arrive as their digests. Times are seconds since the epoch.
"""

import hashlib
import secrets
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec

from toolgate.server.state import tables
from toolgate.server.state.rows.people import BUILT_IN, MAX_VALUES

CLOCK_SLACK = 60.0  # seconds by which the clocks of servers on one state differ at most
KEEP_CODES = 86_400.0  # seconds a code is kept after its end, so that its replay is noticed
KEEP_ENDED = 86_400.0  # seconds a grant is kept after its end
KEEP_REDEEMED = 600.0  # seconds a refresh token is kept after its use: longer than it gives its successor


class Grant(msgspec.Struct, frozen=True):
    """What a person has allowed a client; `id` is also the first part of its access tokens' ids."""

    id: str
    client: str
    subject: str
    scope: str
    resource: str
    redirect_uri: str
    family: str
    made_at: float
    used_at: float | None
    expires_at: float
    revoked_at: float | None

    def __repr__(self) -> str:  # without the secret `family`
        return f"Grant({self.id!r}, client={self.client!r}, subject={self.subject!r}, scope={self.scope!r})"

    def is_valid(self, now: float) -> bool:
        return self.revoked_at is None and now < self.expires_at


def hash_secret(secret: str) -> str:
    """Return what is stored of a secret. No salt: 256 random bits are found in no dictionary."""
    return hashlib.sha256(secret.encode()).hexdigest()


# Grants and codes


def add_grant(connection: "tables.Connection", now: float, lifetime: float, **row: Any) -> str:
    """Add a grant and return its id."""
    id, family = (
        secrets.token_hex(12),
        secrets.token_hex(32),
    )  # an id never begins with "-": it is an argument of `token`
    table = tables.grant
    connection.execute(table.insert().values(id=id, family=family, made_at=now, expires_at=now + lifetime, **row))
    return id


def find_grant(connection: "tables.Connection", id: str) -> Grant | None:
    table = tables.grant
    row = connection.execute(table.select().where(table.c.id == id)).one_or_none()
    return None if row is None else Grant(*row)


class GrantRow(msgspec.Struct, frozen=True):
    """A grant with the row of its client and of its person, each None where there is none any more."""

    grant: Grant
    client: Any
    person: Any


def list_used_grants(
    connection: "tables.Connection", subject: str | None, now: float, most: int | None = None
) -> list[GrantRow]:
    """Return the valid grants of a person, or of all with None, that were used; the newest first, at most `most`."""
    table, client, person = tables.grant, tables.client, tables.person
    joined = table.outerjoin(client, client.c.id == table.c.client).outerjoin(
        person, person.c.subject == table.c.subject
    )
    rows = tables.select(*table.c, *_label("client", client), *_label("person", person)).select_from(joined)
    rows = rows.where(*_is_used(subject, now)).order_by(table.c.made_at.desc()).limit(most)
    return [_split_row(row, len(table.c), len(client.c)) for row in connection.execute(rows)]


def count_used_grants(connection: "tables.Connection", subject: str, now: float) -> int:
    """Return the number of a person's valid grants that were used."""
    rows = tables.select(tables.func.count()).select_from(tables.grant).where(*_is_used(subject, now))
    return int(connection.execute(rows).scalar_one())


def has_used_grant(connection: "tables.Connection", subject: str, client: str, now: float) -> bool:
    """Return whether a person has a valid grant for a client that was used."""
    rows = tables.select(tables.grant.c.id).where(tables.grant.c.client == client, *_is_used(subject, now))
    return connection.execute(rows.limit(1)).first() is not None


def find_clients_of(connection: "tables.Connection", ids: Collection[str]) -> dict[str, str]:
    """Return the clients of these grants, by the grants' ids."""
    table = tables.grant
    rows = tables.select(table.c.id, table.c.client).where(table.c.id.in_(ids))
    return {row.id: row.client for row in connection.execute(rows)}


def _is_used(subject: str | None, now: float) -> "list[tables.ColumnElement[bool]]":
    """Return the conditions for a valid grant that was used, of a person or of anybody."""
    table = tables.grant
    mine = [table.c.subject == subject] if subject is not None else []
    return [*mine, table.c.revoked_at.is_(None), table.c.used_at.is_not(None), table.c.expires_at > now]


def _label(prefix: str, table: Any) -> list[Any]:
    return [column.label(f"{prefix}_{column.name}") for column in table.c]


def _split_row(row: Any, own: int, of_client: int) -> GrantRow:
    """Return the parts of a joined row: the columns of the grant, of its client and of its person."""
    client = dict(zip(tables.client.c.keys(), row[own : own + of_client], strict=True))
    person = dict(zip(tables.person.c.keys(), row[own + of_client :], strict=True))
    return GrantRow(
        Grant(*row[:own]),
        SimpleNamespace(**client) if client["id"] is not None else None,
        SimpleNamespace(**person) if person["subject"] is not None else None,
    )


def mark_grant_used(connection: "tables.Connection", id: str, now: float) -> None:
    connection.execute(tables.grant.update().where(tables.grant.c.id == id).values(used_at=now))


def revoke_grant(connection: "tables.Connection", id: str, now: float) -> list[str]:
    """Revoke a grant, with its code and all its tokens. Return the ids of the denied access tokens."""
    return _revoke(connection, [id], now)


def list_unrevoked_grants(
    connection: "tables.Connection",
    subject: str | None = None,
    client: str | None = None,
    *,
    until: float | None = None,
    most: int | None = None,
) -> list[Grant]:
    """Return grants that are not revoked, even with an unredeemed code: of a person, of a client, or of all.

    - `until`: those made by then
    - `most`: no more than these
    """
    table = tables.grant
    rows = table.select().where(table.c.revoked_at.is_(None)).limit(most)
    rows = rows.where(table.c.subject == subject) if subject is not None else rows
    rows = rows.where(table.c.client == client) if client is not None else rows
    rows = rows.where(table.c.made_at <= until) if until is not None else rows
    return [Grant(*row) for row in connection.execute(rows)]


def revoke_grants(connection: "tables.Connection", grants: Sequence[Grant], now: float) -> list[str]:
    """Revoke grants, each with its code, its tokens and its consents. Return the ids of the denied access tokens."""
    if not grants:
        return []
    for subject, client in {(grant.subject, grant.client) for grant in grants}:
        forget_consents(connection, subject, client)
    return _revoke(connection, [grant.id for grant in grants], now)


def _revoke(connection: "tables.Connection", ids: Sequence[str], now: float) -> list[str]:
    """Revoke grants with their codes and tokens. Return the ids of the denied access tokens."""
    connection.execute(tables.grant.update().where(tables.grant.c.id.in_(ids)).values(revoked_at=now))
    connection.execute(tables.refresh_token.delete().where(tables.refresh_token.c.grant_id.in_(ids)))
    table = tables.access_token
    live = table.update().where(table.c.grant_id.in_(ids), table.c.expires_at > now)
    return list(connection.execute(live.values(denied=True).returning(table.c.jti)).scalars())


def deny_grantless_tokens(
    connection: "tables.Connection",
    now: float,
    *,
    subject: str | None = None,
    client: str | None = None,
    most: int | None = None,
) -> list[str]:
    """Deny the access tokens without a grant, for a subject or of a client, at most `most`. Return their ids."""
    table = tables.access_token
    own = tables.select(table.c.jti).where(table.c.grant_id.is_(None), table.c.expires_at > now, ~table.c.denied)
    own = own.where(table.c.subject == subject) if subject is not None else own
    own = own.where(table.c.client == client) if client is not None else own
    denied = table.update().where(table.c.jti.in_(own.limit(most))).values(denied=True)
    return list(connection.execute(denied.returning(table.c.jti)).scalars())


def deny_tokens_of_subjects(connection: "tables.Connection", subjects: Collection[str], now: float) -> list[str]:
    """Deny all access tokens for these subjects. Return their ids."""
    table, listed, denied = tables.access_token, list(subjects), list[str]()
    good = (table.c.expires_at > now) & table.c.denied.is_(False)
    for start in range(0, len(listed), MAX_VALUES):
        some = table.c.subject.in_(listed[start : start + MAX_VALUES])
        done = table.update().where(some, good).values(denied=True).returning(table.c.jti)
        denied += connection.execute(done).scalars()
    return denied


def find_valid_grants(connection: "tables.Connection", subjects: Collection[str], now: float) -> list[Grant]:
    """Return the valid grants of these subjects, without those whose code was not redeemed."""
    return _find_valid(connection, tables.grant.c.subject, subjects, now)


def find_valid_grants_by_id(connection: "tables.Connection", ids: Collection[str], now: float) -> list[Grant]:
    """Return the valid grants with these ids."""
    return _find_valid(connection, tables.grant.c.id, ids, now)


def _find_valid(connection: "tables.Connection", column: Any, values: Collection[str], now: float) -> list[Grant]:
    table, listed, found = tables.grant, list(values), list[Grant]()
    live = table.select().where(table.c.revoked_at.is_(None), table.c.used_at.is_not(None), table.c.expires_at > now)
    for start in range(0, len(listed), MAX_VALUES):
        rows = connection.execute(live.where(column.in_(listed[start : start + MAX_VALUES])))
        found += [Grant(*row) for row in rows]
    return found


def add_code(connection: "tables.Connection", code: str, **row: Any) -> None:
    connection.execute(tables.code.insert().values(code=code, **row))


def find_code(connection: "tables.Connection", code: str) -> Any:
    """Return the row (grant_id, challenge, expires_at, redeemed_at), or None."""
    return connection.execute(tables.code.select().filter_by(code=code)).one_or_none()


def redeem_code(connection: "tables.Connection", code: str, now: float) -> bool:
    """Mark the code as redeemed, and return whether this was the first time."""
    table = tables.code
    row = table.update().where(table.c.code == code, table.c.redeemed_at.is_(None)).values(redeemed_at=now)
    return connection.execute(row).rowcount == 1


# Refresh tokens


def add_refresh_token(connection: "tables.Connection", token: str, grant_id: str) -> None:
    connection.execute(tables.refresh_token.insert().values(token=token, grant_id=grant_id))


def find_refresh_token(connection: "tables.Connection", token: str) -> Any:
    """Return the row (grant_id, redeemed_at, salt), or None."""
    return connection.execute(tables.refresh_token.select().filter_by(token=token)).one_or_none()


def redeem_refresh_token(connection: "tables.Connection", token: str, now: float, salt: bytes) -> bool:
    """Mark the token as redeemed, and return whether this was the first time."""
    table = tables.refresh_token
    row = table.update().where(table.c.token == token, table.c.redeemed_at.is_(None)).values(redeemed_at=now, salt=salt)
    return connection.execute(row).rowcount == 1


# Consents and people


def save_consent(connection: "tables.Connection", now: float, scope: str, **key: str) -> None:
    """Store an approval; `key` is subject, client, redirect_uri and resource."""
    tables.write_row(connection, tables.consent, dict(key), {"scope": scope, "given_at": now})


def find_consent(connection: "tables.Connection", **key: str) -> str | None:
    """Return the scope that was approved for exactly this key, or None."""
    table = tables.consent
    found = connection.execute(table.select().with_only_columns(table.c.scope).filter_by(**key)).scalar_one_or_none()
    return None if found is None else str(found)


def forget_consents(connection: "tables.Connection", subject: str, client: str) -> None:
    table = tables.consent
    connection.execute(table.delete().where(table.c.subject == subject, table.c.client == client))


def save_person(connection: "tables.Connection", subject: str, **row: Any) -> None:
    """Store the person behind a subject: issuer, known_as, name, seen_at; and email, unless it is to stay."""
    tables.write_row(connection, tables.person, {"subject": subject}, row)


def find_person(connection: "tables.Connection", subject: str) -> Any:
    """Return the row (issuer, known_as, name, email), or None."""
    return connection.execute(tables.person.select().filter_by(subject=subject)).one_or_none()


def list_people(connection: "tables.Connection") -> list[Any]:
    """Return the rows (subject, issuer, known_as, name, email) of all people."""
    return list(connection.execute(tables.person.select()))


def list_people_after(connection: "tables.Connection", subject: str, most: int) -> list[Any]:
    """Return the rows of at most `most` people after a subject, in their order."""
    table = tables.person
    rows = table.select().where(table.c.subject > subject).order_by(table.c.subject).limit(most)
    return list(connection.execute(rows))


def list_people_since(connection: "tables.Connection", since: float) -> list[Any]:
    """Return the rows of the people who signed in, or whose account was removed, since a time."""
    return list(connection.execute(tables.person.select().where(tables.person.c.seen_at >= since)))


def mark_person_changed(connection: "tables.Connection", subject: str, now: float) -> None:
    """Have servers check soon whether the person may still sign in."""
    connection.execute(tables.person.update().where(tables.person.c.subject == subject).values(seen_at=now))


def list_external_people(connection: "tables.Connection") -> list[Any]:
    """Return the rows of all people without an account here."""
    table = tables.person
    external = table.select().where(table.c.issuer != BUILT_IN)
    return list(connection.execute(external.order_by(table.c.issuer, table.c.name)))


def find_people(connection: "tables.Connection", name: str) -> list[Any]:
    """Return the rows (subject, issuer, known_as, name) that match a subject or a name."""
    table = tables.person
    meant = (table.c.subject == name) | (table.c.name == name) | (table.c.known_as == name)
    return list(connection.execute(table.select().where(meant).order_by(table.c.issuer, table.c.known_as)))


# Used assertions and access tokens


def count_used_assertions(connection: "tables.Connection", client: str, now: float) -> int:
    """Return how many used assertions of a client have not expired."""
    table = tables.used_id
    live = tables.select(tables.func.count()).where(table.c.client == client, table.c.expires_at > now)
    return int(connection.execute(live).scalar_one())


def mark_used(connection: "tables.Connection", id: str, expires_at: float, client: str | None = None) -> bool:
    """Mark `id`, of an assertion or a question, as used. Return whether it was not before."""
    return tables.add_row(connection, tables.used_id, {"id": id, "client": client, "expires_at": expires_at})


def is_used(connection: "tables.Connection", id: str) -> bool:
    return connection.execute(tables.used_id.select().filter_by(id=id)).one_or_none() is not None


def add_access_token(connection: "tables.Connection", **row: Any) -> None:
    """Add an access token: jti, client, subject, grant_id, expires_at."""
    connection.execute(tables.access_token.insert().values(denied=False, **row))


def count_access_tokens(connection: "tables.Connection", subject: str, now: float) -> dict[str, int]:
    """Count the unexpired access tokens of a subject by client, denied ones too."""
    table = tables.access_token
    live = (table.c.subject == subject) & (table.c.expires_at > now)
    counted = tables.select(table.c.client, tables.func.count()).where(live)
    return {row[0]: row[1] for row in connection.execute(counted.group_by(table.c.client))}


def find_access_token(connection: "tables.Connection", jti: str) -> Any:
    """Return the row (client, subject, grant_id, expires_at, denied), or None."""
    return connection.execute(tables.access_token.select().filter_by(jti=jti)).one_or_none()


def deny_access_token(connection: "tables.Connection", jti: str) -> None:
    """Deny one access token."""
    connection.execute(tables.access_token.update().where(tables.access_token.c.jti == jti).values(denied=True))


def list_denied_tokens(connection: "tables.Connection", now: float) -> list[str]:
    """Return the ids of all denied access tokens that have not expired."""
    table = tables.access_token
    held = table.select().with_only_columns(table.c.jti).where(table.c.denied, table.c.expires_at > now)
    return list(connection.execute(held).scalars())


def list_active_clients(connection: "tables.Connection", subjects: Collection[str], now: float) -> set[tuple[str, str]]:
    """Return subject and client of the valid access tokens of these subjects."""
    table = tables.access_token
    held = table.select().with_only_columns(table.c.subject, table.c.client)
    held = held.where(table.c.subject.in_(subjects), table.c.expires_at > now, table.c.denied.is_(False))
    return {(subject, client) for subject, client in connection.execute(held)}


def remove_expired(connection: "tables.Connection", now: float) -> None:
    """Remove what has expired."""
    for table in (tables.used_id, tables.access_token):
        connection.execute(table.delete().where(table.c.expires_at <= now))
    table = tables.grant
    over = (table.c.expires_at < now - KEEP_ENDED) | (table.c.revoked_at < now - KEEP_ENDED)
    waits = tables.code.select().with_only_columns(tables.code.c.grant_id).where(tables.code.c.expires_at > now)
    unused = table.c.used_at.is_(None) & table.c.id.not_in(waits) & (table.c.made_at < now - KEEP_CODES)
    connection.execute(table.delete().where(over | unused))
    connection.execute(tables.code.delete().where(tables.code.c.expires_at < now - KEEP_CODES))
    connection.execute(tables.refresh_token.delete().where(tables.refresh_token.c.redeemed_at < now - KEEP_REDEEMED))
