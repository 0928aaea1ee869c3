"""Add the browser of each sign-in."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0003", "0002"


def upgrade() -> None:
    op.add_column("login", sa.Column("browser", sa.String))
