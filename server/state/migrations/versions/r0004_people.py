"""Version 4: who signs in, and what they grant."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0004", "0003"


def upgrade() -> None:
    _people()
    _clients()
    _grants()
    _tokens()


def _people() -> None:
    op.create_table(
        "account",
        sa.Column("name", sa.String, primary_key=True, nullable=False),
        sa.Column("subject", sa.String, nullable=False, unique=True),
        sa.Column("password", sa.String, nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
    )
    op.create_table(
        "login",
        sa.Column("hash", sa.String, primary_key=True, nullable=False),
        sa.Column("first", sa.String, nullable=False),
        sa.Column("issuer", sa.String, nullable=False),
        sa.Column("subject", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("email", sa.String),
        sa.Column("until", sa.Float, nullable=False),
        sa.Index("login_person", "issuer", "subject"),
    )
    op.create_table(
        "departure",
        sa.Column("hash", sa.String, primary_key=True, nullable=False),
        sa.Column("provider", sa.String, nullable=False),
        sa.Column("question", sa.String, nullable=False),
        sa.Column("scopes", sa.String, nullable=False),
        sa.Column("until", sa.Float, nullable=False),
    )
    op.create_table(
        "oauth_person",
        sa.Column("subject", sa.String, primary_key=True),
        sa.Column("issuer", sa.String, nullable=False),
        sa.Column("known_as", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("email", sa.String),
        sa.Column("seen_at", sa.Float, nullable=False),
    )


def _clients() -> None:
    op.create_table(
        "oauth_client",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("metadata", sa.String, nullable=False),
        sa.Column("secret", sa.String),
        sa.Column("made_at", sa.Float, nullable=False),
        sa.Column("granted_at", sa.Float),
        sa.Column("fresh_until", sa.Float),
        sa.Column("failing_since", sa.Float),
    )
    op.create_table(
        "oauth_consent",
        sa.Column("subject", sa.String, primary_key=True),
        sa.Column("client", sa.String, primary_key=True),
        sa.Column("redirect_uri", sa.String, primary_key=True),
        sa.Column("resource", sa.String, primary_key=True),
        sa.Column("scope", sa.String, nullable=False),
        sa.Column("given_at", sa.Float, nullable=False),
    )
    op.create_table(
        "oauth_used",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("client", sa.String, index=True),
        sa.Column("expires_at", sa.Float, nullable=False, index=True),
    )


def _grants() -> None:
    op.create_table(
        "oauth_grant",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("client", sa.String, nullable=False, index=True),
        sa.Column("subject", sa.String, nullable=False, index=True),
        sa.Column("scope", sa.String, nullable=False),
        sa.Column("resource", sa.String, nullable=False),
        sa.Column("redirect_uri", sa.String, nullable=False),
        sa.Column("family", sa.String, nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
        sa.Column("used_at", sa.Float),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.Column("revoked_at", sa.Float),
    )
    op.create_table(
        "oauth_code",
        sa.Column("code", sa.String, primary_key=True),
        sa.Column(
            "grant_id", sa.String, sa.ForeignKey("oauth_grant.id", ondelete="CASCADE"), nullable=False, index=True
        ),
        sa.Column("challenge", sa.String, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.Column("redeemed_at", sa.Float),
    )


def _tokens() -> None:
    op.create_table(
        "oauth_refresh",
        sa.Column("token", sa.String, primary_key=True),
        sa.Column(
            "grant_id", sa.String, sa.ForeignKey("oauth_grant.id", ondelete="CASCADE"), nullable=False, index=True
        ),
        sa.Column("redeemed_at", sa.Float, index=True),
        sa.Column("salt", sa.LargeBinary),
    )
    op.create_table(
        "oauth_access",
        sa.Column("jti", sa.String, primary_key=True),
        sa.Column("client", sa.String, nullable=False),
        sa.Column("subject", sa.String, nullable=False, index=True),
        sa.Column("grant_id", sa.String, sa.ForeignKey("oauth_grant.id"), index=True),
        sa.Column("expires_at", sa.Float, nullable=False, index=True),
        sa.Column("denied", sa.Boolean, nullable=False),
    )
    op.create_table(
        "oauth_key",
        sa.Column("kid", sa.String, primary_key=True),
        sa.Column("sealed", sa.String, nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
        sa.Column("retired_at", sa.Float),
    )
