"""Add the indexes by which callbacks that are due are found."""

from alembic import op

revision, down_revision = "0013", "0012"


def upgrade() -> None:
    op.create_index("callback_due", "callback", ["process", "next_at"])
