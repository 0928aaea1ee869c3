"""Version 1: tasks, plans and callbacks."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0001", None


def upgrade() -> None:
    op.create_table(
        "task",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("principal", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("completed", sa.Boolean, nullable=False),
        sa.Index("task_principal", "principal"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "step",
        sa.Column("task_id", sa.Integer, sa.ForeignKey("task.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("text", sa.String, nullable=False),
        sa.Column("completed", sa.Boolean, nullable=False),
    )
    op.create_table(
        "focus",
        sa.Column("principal", sa.String, primary_key=True),
        sa.Column("session", sa.String, primary_key=True),
        sa.Column("task_id", sa.Integer, sa.ForeignKey("task.id", ondelete="CASCADE"), nullable=False),
        sa.Column("set_at", sa.Float, nullable=False),
    )
    op.create_table(
        "plan",
        sa.Column("principal", sa.String, primary_key=True),
        sa.Column("active", sa.Boolean, nullable=False),
        sa.Column("goal", sa.String, nullable=False),
        sa.Column("plan_file", sa.String),
        sa.Column("started_at", sa.Float, nullable=False),
    )
    op.create_table(
        "callback",
        sa.Column("principal", sa.String, primary_key=True),
        sa.Column("slot", sa.Integer, primary_key=True),
        sa.Column("message", sa.String, nullable=False),
        sa.Column("delay", sa.Integer, nullable=False),
        sa.Column("left", sa.Integer, nullable=False),
        sa.Column("next_at", sa.Float, nullable=False),
        sa.Column("session", sa.String, nullable=False),
        sa.Column("process", sa.String, nullable=False),
    )
