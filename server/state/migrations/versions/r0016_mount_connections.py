"""Add the sign-ins of people at mounted servers."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0016", "0015"


def upgrade() -> None:
    op.create_table(
        "mount_connection",
        sa.Column("principal", sa.String, primary_key=True, nullable=False),
        sa.Column("mount", sa.String, primary_key=True, nullable=False),
        sa.Column("server", sa.String, nullable=False),
        sa.Column("sealed", sa.String, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=True),
        sa.Column("refreshing_since", sa.Float, nullable=True),
        sa.Column("ended", sa.String, nullable=True),
        sa.Column("made_at", sa.Float, nullable=False),
    )
    op.create_table(
        "mount_departure",
        sa.Column("hash", sa.String, primary_key=True, nullable=False),
        sa.Column("principal", sa.String, nullable=False),
        sa.Column("sealed", sa.String, nullable=False),
        sa.Column("until", sa.Float, nullable=False),
    )
    op.create_index("ix_mount_departure_until", "mount_departure", ["until"])
    op.create_index("mount_departure_principal", "mount_departure", ["principal"])
    op.create_table(
        "mount_client",
        sa.Column("issuer", sa.String, primary_key=True, nullable=False),
        sa.Column("redirect_uri", sa.String, primary_key=True, nullable=False),
        sa.Column("sealed", sa.String, nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
    )
