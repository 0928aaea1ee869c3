"""Open, read and write files of the state folder: regular ones only, without waiting, and of a bounded size.

A restored backup or a copy may have a FIFO, a folder, a device or a link in the place of a file. Opening a FIFO waits
for its other end, and a device may never end.
"""

import errno
import os
import stat
from pathlib import Path

MAX_SIZE = 64 * 2**20  # bytes: the largest of these files, the cache of 2,560 skills, has a few MiB


def open_regular(path: Path | str, flags: int, mode: int = 0o600) -> int:
    """Open a regular file, without waiting and without following a link. Raises OSError."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def read_regular(path: Path | str, limit: int = MAX_SIZE) -> bytes:
    """Return the contents of a regular file of at most `limit` bytes. Raises OSError."""
    with open(open_regular(path, os.O_RDONLY), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"over {limit:,} bytes", str(path))
    return data


def write_regular(path: Path | str, data: bytes) -> None:
    """Write a regular file. Raises OSError, also when the disk has no room for all of it."""
    descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)
