"""Add the table of the addresses that nodes were reached at, with those that are known."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0005", "0004"


def upgrade() -> None:
    op.create_table(
        "node_address",
        sa.Column("address", sa.String, primary_key=True, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("since", sa.Float, nullable=False),
    )
    # two nodes may have been at one address, one after the other: the newer is there
    op.execute(
        "INSERT INTO node_address (address, name, since) "
        "SELECT address, name, seen_at FROM node WHERE address != '' ORDER BY seen_at DESC ON CONFLICT DO NOTHING"
    )
