"""Version 1: the tables that a new database has. No database is upgraded to it."""

revision, down_revision = "0001", None


def upgrade() -> None:
    raise NotImplementedError("a database of version 1 is made whole: see server/state/store.py")
