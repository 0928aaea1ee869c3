"""Find connections that have ended, and those of any mount, without reading all."""

from alembic import op

revision, down_revision = "0019", "0018"


def upgrade() -> None:
    op.create_index("mount_connection_ended", "mount_connection", ["ended", "expires_at"])
    op.create_index("mount_connection_mount", "mount_connection", ["mount"])
