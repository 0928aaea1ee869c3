"""Add the table of the secrets that mounts name."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0014", "0013"


def upgrade() -> None:
    op.create_table(
        "secret",
        sa.Column("principal", sa.String, primary_key=True, nullable=False),
        sa.Column("name", sa.String, primary_key=True, nullable=False),
        sa.Column("sealed", sa.String, nullable=False),
        sa.Column("set_at", sa.Float, nullable=False),
    )
    op.create_index("ix_secret_set_at", "secret", ["set_at"])
