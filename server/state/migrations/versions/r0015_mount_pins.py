"""Add what was approved of mounted servers."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0015", "0014"

AnyText = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "mount_baseline",
        sa.Column("mount", sa.String, primary_key=True, nullable=False),
        sa.Column("server", sa.String, primary_key=True, nullable=False),
        sa.Column("seen", sa.Boolean, nullable=False),
        sa.Column("taken_at", sa.Float, nullable=False),
    )
    op.create_table(
        "mount_pin",
        sa.Column("mount", sa.String, primary_key=True, nullable=False),
        sa.Column("server", sa.String, primary_key=True, nullable=False),
        sa.Column("kind", sa.String, primary_key=True, nullable=False),
        sa.Column("digest", sa.String, primary_key=True, nullable=False),
        sa.Column("name", AnyText, nullable=False),
        sa.Column("standing", sa.String, nullable=False),
        sa.Column("definition", sa.LargeBinary, nullable=False),
        sa.Column("seen_at", sa.Float, nullable=False),
    )
