"""Stand for the oldest version that is upgraded. No database is upgraded to it."""

from toolgate.server.state.tables import OLDEST

revision, down_revision = f"{OLDEST:04}", None


def upgrade() -> None:
    raise NotImplementedError(f"a database of version {OLDEST} is as its program made it")
