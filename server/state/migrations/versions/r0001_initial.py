"""Stand for version 1, the tables of a new database. No database is upgraded to it."""

revision, down_revision = "0001", None


def upgrade() -> None:
    raise NotImplementedError("a database of version 1 is made whole: see server/state/store.py")
