"""The tables of OAuth: clients, codes, grants with their refresh tokens, keys. Knows no protocol.

A secret is kept as the SHA-256 of its 256 random bits alone (`digest`), a private key sealed. Times are seconds
since the epoch. A grant's subject is the one access tokens carry (`sub`).
"""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import MetaData, Table


@dataclass(frozen=True, slots=True)
class OAuthTables:
    client: "Table"
    code: "Table"
    grant: "Table"
    refresh: "Table"
    consent: "Table"
    person: "Table"
    access: "Table"
    used: "Table"
    key: "Table"


def declare(metadata: "MetaData") -> OAuthTables:
    """The tables, in the order in which they refer to each other."""
    return OAuthTables(
        client=_client(metadata),
        grant=_grant(metadata),
        code=_code(metadata),
        refresh=_refresh(metadata),
        consent=_consent(metadata),
        person=_person(metadata),
        access=_access(metadata),
        used=_used(metadata),
        key=_key(metadata),
    )


def hash_secret(secret: str) -> str:
    """What is kept of a secret. No salt: 256 random bits are found in no dictionary."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _client(metadata: "MetaData") -> "Table":
    """Those registered dynamically, and the metadata documents of those that have one, as last fetched."""
    from sqlalchemy import Column, Float, String, Table  # start-up

    return Table(
        "oauth_client",
        metadata,
        Column("id", String, primary_key=True),
        Column("kind", String, nullable=False),
        Column("metadata", String, nullable=False),  # JSON, as it was accepted
        Column("secret", String),  # digest
        Column("made_at", Float, nullable=False),
        Column("granted_at", Float),  # when a person approved it last; never: it goes after a week
        Column("fresh_until", Float),  # of a document: when it is fetched again
        Column("failing_since", Float),  # of a document: when it first could not be had, since it was had last
    )


def _grant(metadata: "MetaData") -> "Table":
    """What a person, or an identity provider for them, has allowed a client: the family of its tokens."""
    from sqlalchemy import Column, Float, String, Table  # start-up

    return Table(
        "oauth_grant",
        metadata,
        Column("id", String, primary_key=True),
        Column("client", String, nullable=False, index=True),
        Column("subject", String, nullable=False, index=True),
        Column("scope", String, nullable=False),
        Column("resource", String, nullable=False),
        Column("redirect_uri", String, nullable=False),
        Column("family", String, nullable=False),  # marks its refresh tokens: see oauth_server/refresh_tokens.py
        Column("made_at", Float, nullable=False),
        Column("used_at", Float),  # when a token was last made of it; null while its code waits
        Column("expires_at", Float, nullable=False),
        Column("revoked_at", Float),
    )


def _code(metadata: "MetaData") -> "Table":
    from sqlalchemy import Column, Float, ForeignKey, String, Table  # start-up

    return Table(
        "oauth_code",
        metadata,
        Column("code", String, primary_key=True),  # digest
        Column("grant_id", ForeignKey("oauth_grant.id", ondelete="CASCADE"), nullable=False, index=True),
        Column("challenge", String, nullable=False),
        Column("expires_at", Float, nullable=False),
        Column("redeemed_at", Float),
    )


def _refresh(metadata: "MetaData") -> "Table":
    from sqlalchemy import Column, Float, ForeignKey, LargeBinary, String, Table  # start-up

    return Table(
        "oauth_refresh",
        metadata,
        Column("token", String, primary_key=True),  # digest
        Column("grant_id", ForeignKey("oauth_grant.id", ondelete="CASCADE"), nullable=False, index=True),
        Column("redeemed_at", Float, index=True),
        Column("salt", LargeBinary),  # with the token itself it gives the successor: see oauth_server/refresh_tokens.py
    )


def _consent(metadata: "MetaData") -> "Table":
    from sqlalchemy import Column, Float, String, Table  # start-up

    return Table(
        "oauth_consent",
        metadata,
        Column("subject", String, primary_key=True),
        Column("client", String, primary_key=True),
        Column("redirect_uri", String, primary_key=True),
        Column("resource", String, primary_key=True),
        Column("scope", String, nullable=False),
        Column("given_at", Float, nullable=False),
    )


def _person(metadata: "MetaData") -> "Table":
    """Whom a subject stands for, at the issuer that signs them in."""
    from sqlalchemy import Column, Float, String, Table  # start-up

    return Table(
        "oauth_person",
        metadata,
        Column("subject", String, primary_key=True),
        Column("issuer", String, nullable=False),
        Column("known_as", String, nullable=False),  # the subject over there
        Column("name", String, nullable=False),
        Column("email", String),  # that the issuer had verified when it signed them in last
        Column("seen_at", Float, nullable=False),
    )


def _access(metadata: "MetaData") -> "Table":
    """The access tokens that have not expired, by their `jti`: to deny them with what they came of."""
    from sqlalchemy import Boolean, Column, Float, ForeignKey, String, Table  # start-up

    return Table(
        "oauth_access",
        metadata,
        Column("jti", String, primary_key=True),
        Column("client", String, nullable=False),
        Column("subject", String, nullable=False, index=True),
        Column("grant_id", ForeignKey("oauth_grant.id"), index=True),  # null: nobody was asked (see machine_grants.py)
        Column("expires_at", Float, nullable=False, index=True),
        Column("denied", Boolean, nullable=False),
    )


def _used(metadata: "MetaData") -> "Table":
    """Assertions that were used and questions that were answered, until they expire."""
    from sqlalchemy import Column, Float, String, Table  # start-up

    return Table(
        "oauth_used",
        metadata,
        Column("id", String, primary_key=True),  # digest: of issuer and `jti`, or of what names a question
        Column("client", String, index=True),  # that came with the assertion
        Column("expires_at", Float, nullable=False, index=True),
    )


def _key(metadata: "MetaData") -> "Table":
    from sqlalchemy import Column, Float, String, Table  # start-up

    return Table(
        "oauth_key",
        metadata,
        Column("kid", String, primary_key=True),
        Column("sealed", String, nullable=False),  # the private JWK
        Column("made_at", Float, nullable=False),
        Column("retired_at", Float),  # when the next one takes over; null: there is none yet
    )
