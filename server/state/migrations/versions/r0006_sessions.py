"""Version 6: sessions that go on after a restart, and where principals stand. Sessions are named by a digest from here
on, so what was noted of earlier ones, by their ids, goes."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0006", "0005"


def upgrade() -> None:
    op.create_table(
        "session",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("issuer", sa.String, nullable=False),
        sa.Column("subject", sa.String, nullable=False),
        sa.Column("client", sa.String, nullable=False),
        sa.Column("process", sa.String, nullable=False),
        sa.Column("details", sa.LargeBinary, nullable=False),
        sa.Column("began_at", sa.Float, nullable=False),
        sa.Column("seen_at", sa.Float, nullable=False),
    )
    op.create_table(
        "session_message",
        sa.Column("session", sa.String, sa.ForeignKey("session.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("stream", sa.String, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "place",
        sa.Column("principal", sa.String, primary_key=True),
        sa.Column("workspace", sa.String, primary_key=True),
        sa.Column("cwd", sa.LargeBinary, nullable=False),
        sa.Column("moved_at", sa.Float, nullable=False),
    )
    op.execute("DELETE FROM focus WHERE session != ''")
    op.execute("UPDATE callback SET session = ''")
