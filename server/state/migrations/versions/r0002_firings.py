"""Version 2: what fired is remembered."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0002", "0001"


def upgrade() -> None:
    op.create_table(
        "firing",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("principal", sa.String, nullable=False),
        sa.Column("slot", sa.Integer, nullable=False),
        sa.Column("message", sa.String, nullable=False),
        sa.Column("fired_at", sa.Float, nullable=False),
        sa.Index("firing_principal", "principal"),
        sqlite_autoincrement=True,
    )
