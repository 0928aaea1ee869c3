"""Add the table of the deployment's id, which names its keys in Redis."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0011", "0010"


def upgrade() -> None:
    op.create_table("deployment", sa.Column("id", sa.String, primary_key=True, nullable=False))
