"""Count the deliveries that each subscription's client has acknowledged."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0008", "0007"


def upgrade() -> None:
    op.add_column("event_subscription", sa.Column("delivered", sa.Integer, nullable=False, server_default="0"))
