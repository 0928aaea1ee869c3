"""Walk the folders of a hostile tree, however deep. Blocking.

One folder is open at a time, so that depth costs neither descriptors nor the stack; going up, `..` is compared with
where the walk came from. No link is followed.
"""

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TreeMovedError(OSError):
    """Its folders are being moved about."""


@contextmanager
def open_folder(folder: Path | str, within: int | None = None) -> Generator[int]:
    """The descriptor of a folder that is no link."""
    held = os.open(folder, FOLDER, dir_fd=within)
    try:
        yield held
    finally:
        os.close(held)


def walk_folders(root: Path, past: type[OSError] = FileNotFoundError) -> Generator[tuple[int, str], None, None]:
    """The descriptor of each folder, which is good until the next is asked for, and its path from the first on: "" or
    "a/b/". The first is `root`; what is in a folder is looked at when the next is asked for. One that can't be opened
    is left out where the reason is `past`: another raises."""
    here, path = os.open(root, FOLDER), ""
    try:
        yield here, path
        way = [("", _identity(here), _folders(here))]  # down to here: name, identity, folders still to come
        while way:
            name, _, below = way[-1]
            if below:
                name = below.pop()
                try:
                    here = _move_to(here, name)
                except past:  # it was removed meanwhile
                    continue
                path += f"{name}/"
                yield here, path
                way.append((name, _identity(here), _folders(here)))
                continue
            way.pop()
            if way:
                here = _move_to(here, "..")
                path = path[: -len(name) - 1]
                if _identity(here) != way[-1][1]:
                    raise TreeMovedError("its folders are being moved while they are read")
    finally:
        os.close(here)


def _move_to(here: int, name: str) -> int:
    there = os.open(name, FOLDER, dir_fd=here)
    os.close(here)
    return there


def _identity(folder: int) -> tuple[int, int]:
    found = os.fstat(folder)
    return found.st_dev, found.st_ino


def _folders(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if stat.S_ISDIR(entry.stat(follow_symlinks=False).st_mode)]
