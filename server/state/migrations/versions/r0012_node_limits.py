"""Add how many people each node takes, and whether the files of people without a node count there."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0012", "0011"


def upgrade() -> None:
    op.add_column("node", sa.Column("max_people", sa.Integer, nullable=True))
    op.add_column("node", sa.Column("adopts", sa.Boolean, nullable=False, server_default=sa.false()))
