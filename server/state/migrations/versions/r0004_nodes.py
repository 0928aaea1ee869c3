"""Add the tables of nodes, and of the node that each principal is on."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0004", "0003"


def upgrade() -> None:
    op.create_table(
        "node",
        sa.Column("name", sa.String, primary_key=True, nullable=False),
        sa.Column("address", sa.String, nullable=False),
        sa.Column("draining", sa.Boolean, nullable=False),
        sa.Column("seen_at", sa.Float, nullable=False),
    )
    op.create_table(
        "placement",
        sa.Column("principal", sa.String, primary_key=True, nullable=False),
        sa.Column("node", sa.String, nullable=False),
        sa.Column("placed_at", sa.Float, nullable=False),
    )
    op.create_index("ix_placement_node", "placement", ["node"])
