"""Add the tables of events: what happened, who waits for it, and the subscriptions by webhook."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0007", "0006"


def upgrade() -> None:
    op.create_table(
        "event",
        sa.Column("principal", sa.String, primary_key=True, nullable=False),
        sa.Column("number", sa.Integer, primary_key=True, nullable=False, autoincrement=False),
        sa.Column("id", sa.String, nullable=False),
        sa.Column("type", sa.String, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("happened_at", sa.Float, nullable=False),
        sa.Index("event_id", "principal", "id", unique=True),
        sa.Index("event_type", "principal", "type", "number"),
    )
    op.create_table(
        "event_log",
        sa.Column("principal", sa.String, primary_key=True, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("last", sa.Integer, nullable=False),
        sa.Column("event_count", sa.Integer, nullable=False),
        sa.Column("byte_count", sa.Integer, nullable=False),
    )
    op.create_table(
        "event_interest",
        sa.Column("principal", sa.String, primary_key=True, nullable=False),
        sa.Column("type", sa.String, primary_key=True, nullable=False),
        sa.Column("arguments", sa.String, primary_key=True, nullable=False),
        sa.Column("since", sa.Integer, nullable=False),
        sa.Column("until", sa.Float, nullable=False),
    )
    op.create_table(
        "event_subscription",
        sa.Column("id", sa.String, primary_key=True, nullable=False),
        sa.Column("principal", sa.String, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("grant_key", sa.String, nullable=False),
        sa.Column("url", sa.String, nullable=False),
        sa.Column("type", sa.String, nullable=False),
        sa.Column("arguments", sa.String, nullable=False),
        sa.Column("sealed", sa.String, nullable=False),
        sa.Column("previous", sa.String),
        sa.Column("previous_until", sa.Float),
        sa.Column("active", sa.Boolean, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.Column("has_gap", sa.Boolean, nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
        sa.Column("delivered_at", sa.Float),
        sa.Column("failing_since", sa.Float),
        sa.Column("last_error", sa.String),
        sa.Index("event_subscription_principal", "principal", "type"),
    )
    op.create_table(
        "event_delivery",
        sa.Column(
            "subscription",
            sa.String,
            sa.ForeignKey("event_subscription.id", ondelete="CASCADE"),
            primary_key=True,
            nullable=False,
        ),
        sa.Column("number", sa.Integer, primary_key=True, nullable=False, autoincrement=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("due_at", sa.Float, nullable=False),
    )
    op.create_table(
        "event_endpoint",
        sa.Column("principal", sa.String, primary_key=True, nullable=False),
        sa.Column("url", sa.String, primary_key=True, nullable=False),
        sa.Column("verified_at", sa.Float, nullable=False),
    )
