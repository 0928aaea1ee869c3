"""Open, read and write files of the state folder, and read those that options name: regular ones only, without
waiting, and of a bounded size.

A restored backup or a copy may have a FIFO, a folder, a device or a link in the place of a file. Opening a FIFO waits
for its other end, and a device may never end.
"""

import errno
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

MAX_SIZE = 64 * 2**20  # bytes: the largest of these files, the cache of 2,560 skills, has a few MiB
OF_OTHER_KINDS = (errno.ELOOP, errno.ENXIO, errno.EISDIR)  # a link, a socket or a FIFO without a reader, a folder

log = logging.getLogger(__name__)


def open_regular(path: Path | str, flags: int, *, follow: bool = False) -> int:
    """Open a regular file without waiting. `follow`: it may be a link to one. Raises OSError."""
    links = 0 if follow else os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags | links | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in OF_OTHER_KINDS:
            raise OSError(error.errno, "not a regular file", str(path)) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is a directory" if stat.S_ISDIR(mode) else "not a regular file", str(path))
    return descriptor


def read_regular(path: Path | str, limit: int = MAX_SIZE, *, follow: bool = False) -> bytes:
    """Return the contents of a regular file of at most `limit` bytes. Raises OSError."""
    with open(open_regular(path, os.O_RDONLY, follow=follow), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"over {limit:,} bytes", str(path))
    return data


def read_regular_text(path: Path | str, limit: int) -> str:
    """Return the text of a regular file of at most `limit` bytes, or of one that a link leads to. Raises OSError,
    UnicodeDecodeError."""
    return read_regular(path, limit, follow=True).decode("utf-8")


def write_regular(path: Path | str, data: bytes) -> None:
    """Write a regular file. Raises OSError, also when the disk has no room for all of it."""
    descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


def open_or_replace(path: Path | str, flags: int) -> int:
    """Open a file that may be made again, such as a lock. What else is in its place is removed. Raises OSError."""
    try:
        return open_regular(path, flags)
    except OSError as error:
        if not os.path.lexists(path):
            raise
        log.warning("%s is damaged, and is made again: %s", path, error.strerror)
        allow_owner(path)
        if not stat.S_ISREG(os.lstat(path).st_mode):
            remove_entry(Path(path))
    return open_regular(path, flags)


def remove_entry(path: Path) -> None:
    """Remove what is in the place of a file, also a folder with its contents, if there is something. Raises OSError."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        if path.is_symlink() or not path.is_dir():
            raise
        import shutil  # start-up: 2 ms and 0.5 MB, and folders here are rare

        shutil.rmtree(path)


def allow_owner(path: Path | str) -> None:
    """Let the owner read and write a file of theirs, as this module created it."""
    with suppress(OSError):
        if stat.S_ISREG(os.lstat(path).st_mode):
            os.chmod(path, 0o600)
