"""Add the table of the ends of subscriptions that their clients have not heard of."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0010", "0009"


def upgrade() -> None:
    op.create_table(
        "event_end",
        sa.Column("subscription", sa.String, primary_key=True, nullable=False),
        sa.Column("principal", sa.String, nullable=False),
        sa.Column("message", sa.String, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("held", sa.LargeBinary, nullable=False),
        sa.Column("ended_at", sa.Float, nullable=False),
    )
