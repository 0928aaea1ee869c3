"""Find what is waited for of one type, without reading what is of all."""

from alembic import op

revision, down_revision = "0020", "0019"


def upgrade() -> None:
    op.create_index("event_interest_type", "event_interest", ["type", "until"])
    op.create_index("event_subscription_type", "event_subscription", ["type"])
