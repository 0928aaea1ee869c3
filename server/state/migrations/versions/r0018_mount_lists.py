"""Add what single people were shown of mounted servers."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0018", "0017"


def upgrade() -> None:
    op.create_table(
        "mount_list",
        sa.Column("principal", sa.String, primary_key=True, nullable=False),
        sa.Column("mount", sa.String, primary_key=True, nullable=False),
        sa.Column("profile", sa.String, primary_key=True, nullable=False),
        sa.Column("server", sa.String, nullable=False),
        sa.Column("size", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("kept_at", sa.Float, nullable=False),
        sa.Column("sealed", sa.String, nullable=False),
    )
    op.create_index("mount_list_kept_at", "mount_list", ["kept_at", "size"])
