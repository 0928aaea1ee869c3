"""Add the tables of the audit log: its chains, and their lines."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0009", "0008"


def upgrade() -> None:
    text = sa.String().with_variant(sa.String(collation="C"), "postgresql")
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "audit_chain",
        sa.Column("id", text, primary_key=True, nullable=False),
        sa.Column("head", text, nullable=False),
        sa.Column("floor", text),
        sa.Column("vouched", text),
    )
    op.create_table(
        "audit_line",
        sa.Column("chain", text, primary_key=True, nullable=False),
        sa.Column("seq", number, primary_key=True, nullable=False, autoincrement=False),
        sa.Column("time", text, nullable=False),
        sa.Column("principal", text),
        sa.Column("line", sa.LargeBinary, nullable=False),
        sa.Index("audit_line_time", "time", "chain", "seq"),
        sa.Index("audit_line_principal", "principal", "time"),
    )
