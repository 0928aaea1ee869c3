"""Read the secret of --secret, which seals what servers on one database share."""

import hashlib
import os
from pathlib import Path

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import describe_os_error
from toolgate.server.config.load import Config
from toolgate.server.state.keys.file import is_private
from toolgate.tools.api.regular_file import open_regular

LEAST = 32  # bytes: as many as the keys it seals
MOST = 64 * 1024


def read_secret(config: Config) -> bytes | None:
    """Return 32 bytes made of the file of --secret, or None without one. Raises UsageError."""
    path: Path | None = config.secret
    if path is None:
        return None
    if config.database is None:
        raise UsageError("--secret is for --database: without it, the keys are in the state folder")
    try:
        with open(open_regular(path, os.O_RDONLY, follow=True), "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(MOST + 1)
    except OSError as error:
        raise UsageError(f"--secret: can't read {describe_os_error(error)}") from None
    if not is_private(status):
        raise UsageError(f"--secret: others can read or change {path}: chown it to this user, and chmod 600")
    if not LEAST <= len(content) <= MOST:
        raise UsageError(f"--secret: {path} must have at least {LEAST} random bytes: head -c {LEAST} /dev/urandom")
    return hashlib.sha256(b"toolgate sealing keys\0" + content).digest()
