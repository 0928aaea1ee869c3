"""A secret key in a file of its own, its owner's alone. Knows nothing of what it is for.

NAME                    the key
NAME.before-1767225600  one before it, which is still good to read with until then, in seconds since the epoch
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

SIZE = 32  # bytes, as AES-256 and HMAC-SHA-256 want them


def load_or_create_key(file: Path) -> bytes:
    """The key in `file`, made when there is none; two servers on one state end up with the same. Raises OSError."""
    with suppress(FileNotFoundError):
        return read_key(file)  # a full disk, or one that can't be written to, is no reason to be without it
    create_file(file, os.urandom(SIZE))
    return read_key(file)


def create_file(file: Path, data: bytes) -> None:
    """Have `data` in `file`, unless there is something already. Raises OSError."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = _draft(file, data)
    try:
        os.link(draft, file)  # fails where another was first: never half a key, never two
    except FileExistsError:
        pass
    finally:
        draft.unlink(missing_ok=True)


def read_key(file: Path) -> bytes:
    """The key in `file`. Raises OSError when there is none, or what is there is no key."""
    key = file.read_bytes()
    if len(key) != SIZE:
        raise OSError(f"{file} is damaged: remove it, and a new key is made")
    return key


def read_previous_keys(file: Path) -> list[tuple[bytes, float]]:
    """The keys before it, each with the time until which it is good to read with. Raises OSError."""
    return [(read_key(path), until) for path, until in _before(file)]


def file_identity(file: Path) -> tuple[int, int]:
    """What changes with the key: another process may have rotated it. Costs a stat. Raises OSError."""
    found = file.stat()
    return found.st_ino, found.st_mtime_ns


def rotate_key(file: Path, grace: float) -> None:
    """Put a new key in place of the one in `file`, if there is one. That one can be read with for `lasts` seconds more;
    with 0, none of those before can. Raises OSError."""
    if not file.exists():
        return
    now = time.time()
    remove_previous_keys(file, now if grace else None)
    if grace:
        untils = (file.with_name(f"{file.name}.before-{until}") for until in count(int(now + grace) + 1))
        _draft(file, read_key(file)).rename(next(path for path in untils if not path.exists()))
    _draft(file, os.urandom(SIZE)).rename(file)


def remove_previous_keys(file: Path, now: float | None = None) -> None:
    """Read with no key before it any more; those that were good until after `now` stay."""
    for path, until in _before(file):
        if now is None or until < now:
            path.unlink(missing_ok=True)


def _draft(file: Path, data: bytes) -> Path:
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb") as made:
            made.write(data)
            made.flush()
            os.fsync(descriptor)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return draft


def _before(file: Path) -> Iterator[tuple[Path, float]]:
    for path in sorted(file.parent.glob(f"{file.name}.before-*")):
        until = path.name.rpartition("-")[2]
        if until.isdecimal():
            yield path, float(until)
