"""Version 5: from here on a number stands for one schema. Versions 3 and 4 were in use with less in them before
they were what their migrations make; what such a database lacks is added, with what its rows have to say there."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0005", "0004"

Lacking = tuple[str, sa.types.TypeEngine[Any], str | None]

# Table → its columns that may be missing, each with what to fill it with; None leaves it empty, and allows that
LACKING: dict[str, list[Lacking]] = {
    "deferral": [("server", sa.String(), "''"), ("read", sa.Boolean(), "0")],
    "login": [("email", sa.String(), None)],
    "oauth_client": [("failing_since", sa.Float(), None)],
    "oauth_grant": [("family", sa.String(), "lower(hex(randomblob(32)))")],
    "oauth_person": [("email", sa.String(), None)],
    "oauth_access": [
        ("subject", sa.String(), "coalesce((SELECT subject FROM oauth_grant WHERE id = grant_id), client)"),
    ],
    "oauth_used": [("client", sa.String(), None)],
}
INDEXED = [("oauth_refresh", "redeemed_at"), ("oauth_access", "subject"), ("oauth_used", "client")]


def upgrade() -> None:
    found = sa.inspect(op.get_bind())
    if not found.has_table("firing"):
        _remember_firings()
    for table, columns in LACKING.items():
        there = {column["name"] for column in found.get_columns(table)}
        _add(table, [column for column in columns if column[0] not in there])
    if any(column["name"] == "redirect_uri" for column in found.get_columns("oauth_code")):
        with op.batch_alter_table("oauth_code") as batch:
            batch.drop_column("redirect_uri")  # a grant has it
    if found.has_table("oauth_question"):  # is in the address of its page since
        op.drop_table("oauth_question")
    for table, column in INDEXED:
        name = f"ix_{table}_{column}"
        if name not in {index["name"] for index in found.get_indexes(table)}:
            op.create_index(name, table, [column])


def _add(table: str, columns: list[Lacking]) -> None:
    for name, kind, filled in columns:
        op.add_column(table, sa.Column(name, kind))
        if filled is not None:
            op.execute(f"UPDATE {table} SET {name} = {filled}")  # noqa: S608  # of the table above
    needed = [(name, kind) for name, kind, filled in columns if filled is not None]
    if needed:
        with op.batch_alter_table(table) as batch:
            for name, kind in needed:
                batch.alter_column(name, existing_type=kind, nullable=False)


def _remember_firings() -> None:
    op.create_table(
        "firing",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("principal", sa.String, nullable=False),
        sa.Column("slot", sa.Integer, nullable=False),
        sa.Column("message", sa.String, nullable=False),
        sa.Column("fired_at", sa.Float, nullable=False),
        sa.Index("firing_principal", "principal"),
        sqlite_autoincrement=True,
    )
