"""Store a secret key in a private file, and rotate it.

NAME                    the key
NAME.before-1767225600  a previous one, valid for reading until then, in seconds since the epoch
"""

import os
import time
from collections.abc import Hashable, Iterator
from contextlib import suppress
from itertools import count
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.tools.api.regular_file import read_regular

if TYPE_CHECKING:
    from toolgate.server.state.tables import Connection

SIZE = 32  # bytes, as AES-256 and HMAC-SHA-256 want them
MAX_KEY = 4_096  # bytes of a damaged one


class KeyFile:
    """The `SealingKey` in a file, which is created at its first use. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def mark(self) -> Hashable:
        try:
            return file_identity(self._path)
        except FileNotFoundError:
            load_or_create_key(self._path)
            return file_identity(self._path)

    def read(self) -> tuple[bytes, list[tuple[bytes, float]]]:
        return read_key(self._path), read_previous_keys(self._path)

    def refresh(self, connection: "Connection") -> None:
        pass


def is_private(status: os.stat_result) -> bool:
    """Return whether only this user and root can read a secret file. Root's may have a group, as mounted secrets do."""
    is_roots = status.st_uid == 0 and os.geteuid() != 0
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & (0o027 if is_roots else 0o077)


def load_or_create_key(file: Path) -> bytes:
    """Return the key in `file`, created when missing; two servers on one state get the same. Raises OSError."""
    with suppress(FileNotFoundError):
        return read_key(file)  # a full or read-only disk can still be read
    create_file(file, os.urandom(SIZE))
    return read_key(file)


def create_file(file: Path, data: bytes) -> None:
    """Write `data` to `file` unless it exists. Raises OSError."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = _draft(file, data)
    try:
        os.link(draft, file)  # fails where another process was first: never half a key, never two
    except FileExistsError:
        pass
    finally:
        draft.unlink(missing_ok=True)


def replace_file(file: Path, data: bytes) -> None:
    """Write `data` to `file` in one step: a reader sees what was there, or all of it. Raises OSError."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _draft(file, data).rename(file)


def read_key(file: Path) -> bytes:
    """Return the key in `file`. Raises OSError when it is missing or damaged."""
    key = read_regular(file, MAX_KEY, follow=True)  # a mounted secret is a link
    if len(key) != SIZE:
        raise OSError(f"{file} is damaged: it has {len(key)} bytes, not {SIZE}")
    return key


def read_previous_keys(file: Path) -> list[tuple[bytes, float]]:
    """Return the previous keys, each with the time until which it is valid for reading. Raises OSError."""
    return [(read_key(path), until) for path, until in _before(file)]


def file_identity(file: Path) -> tuple[int, int]:
    """Return what changes when any process rotates the key. Costs a stat. Raises OSError."""
    status = file.stat()
    return status.st_ino, status.st_mtime_ns


def rotate_key(file: Path, grace: float) -> None:
    """Replace the key in `file`, if there is one. Raises OSError.

    The old key stays valid for reading for `grace` seconds; with 0, all previous keys end.
    """
    if not file.exists():
        return
    now = time.time()
    remove_previous_keys(file, now if grace else None)
    if grace:
        untils = (file.with_name(previous_name(file.name, until)) for until in count(now + grace))
        _draft(file, read_key(file)).rename(next(path for path in untils if not path.exists()))
    _draft(file, os.urandom(SIZE)).rename(file)


def previous_name(name: str, until: float) -> str:
    """Return the name of the file of a previous key that is valid until then."""
    return f"{name}.before-{ceil(until)}"


def parse_name(file: str) -> tuple[str, float | None]:
    """Return the name of the key in a file, and until when it is valid: None for the present one."""
    name, before, until = file.partition(".before-")
    return name, float(until) if before and until.isdecimal() else None


def remove_previous_keys(file: Path, now: float | None = None) -> None:
    """Remove the previous keys; with `now`, only those that have expired by then."""
    for path, until in _before(file):
        if now is None or until < now:
            path.unlink(missing_ok=True)


def _draft(file: Path, data: bytes) -> Path:
    draft = file.with_name(f".{file.name}.{os.urandom(8).hex()}")  # servers in containers may have the same process id
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb") as draft_file:
            draft_file.write(data)
            draft_file.flush()
            os.fsync(descriptor)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(file)) from None  # a write to a full disk names no file
    return draft


def _before(file: Path) -> Iterator[tuple[Path, float]]:
    for path in sorted(file.parent.glob(f"{file.name}.before-*")):
        _, until = parse_name(path.name)
        if until is not None:
            yield path, until
