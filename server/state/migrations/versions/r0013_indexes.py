"""Add the indexes by which a statement finds its rows among many."""

from alembic import op

revision, down_revision = "0013", "0012"


def upgrade() -> None:
    op.create_index("callback_due", "callback", ["process", "next_at"])
    op.create_index("task_completed", "task", ["principal", "completed", "id"])
    op.create_index("ix_focus_task_id", "focus", ["task_id"])
    op.create_index("ix_focus_set_at", "focus", ["set_at"])
