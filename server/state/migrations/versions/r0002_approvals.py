"""Add the table of approvals that people gave for good."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0002", "0001"


def upgrade() -> None:
    op.create_table(
        "approval",
        sa.Column("id", sa.String, primary_key=True, nullable=False),
        sa.Column("principal", sa.String, nullable=False),
        sa.Column("key", sa.String, nullable=False),
        sa.Column("tool", sa.String, nullable=False),
        sa.Column("shown", sa.String, nullable=False),
        sa.Column("folder", sa.String, nullable=False),
        sa.Column("rule", sa.String, nullable=False),
        sa.Column("client", sa.String, nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
        sa.Column("used_at", sa.Float),
    )
    op.create_index("approval_principal", "approval", ["principal", "key"])
