"""Add the table of the version, with the first version that can use the tables, and the table of sealing keys."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0006", "0005"


def upgrade() -> None:
    op.create_table(
        "schema_version",
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False, nullable=False),
        sa.Column("compatible_since", sa.Integer, nullable=False),
    )
    op.create_table(
        "sealing_key",
        sa.Column("id", sa.String, primary_key=True, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("sealed", sa.String, nullable=False),
        sa.Column("begins_at", sa.Float, nullable=False),
        sa.Column("ends_at", sa.Float),
    )
