"""Add what people have switched off of mounted servers."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0017", "0016"


def upgrade() -> None:
    op.create_table(
        "mount_choice",
        sa.Column("principal", sa.String, primary_key=True, nullable=False),
        sa.Column("switched_off", sa.String, nullable=False),
        sa.Column("changed_at", sa.Float, nullable=False),
    )
    op.create_index("ix_mount_choice_changed_at", "mount_choice", ["changed_at"])
