"""A secret key in a file of its own, its owner's alone. Knows nothing of what it is for."""

import os
from pathlib import Path

SIZE = 32  # bytes, as AES-256 and HMAC-SHA-256 want them


def kept(file: Path) -> bytes:
    """The key in `file`, made when there is none; two servers on one state end up with the same. Raises OSError."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as made:
            made.write(os.urandom(SIZE))
        os.link(draft, file)  # fails where another was first: never half a key, never two
    except FileExistsError:
        pass
    finally:
        draft.unlink(missing_ok=True)
    return read(file)


def read(file: Path) -> bytes:
    """The key in `file`. Raises OSError when there is none, or what is there is no key."""
    key = file.read_bytes()
    if len(key) != SIZE:
        raise OSError(f"{file} is damaged: remove it, and a new key is made")
    return key
