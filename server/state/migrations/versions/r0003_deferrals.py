"""Version 3: calls that have become tasks of the extension."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0003", "0002"


def upgrade() -> None:
    op.create_table(
        "deferral",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("principal", sa.String, nullable=False),
        sa.Column("process", sa.String, nullable=False),
        sa.Column("server", sa.String, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("message", sa.String),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.Column("outcome", sa.LargeBinary),
        sa.Column("questions", sa.LargeBinary),
        sa.Column("again", sa.LargeBinary),
        sa.Column("read", sa.Boolean, nullable=False),
        sa.Index("deferral_principal", "principal"),
    )
