"""Walk the folders of a hostile tree, however deep. Blocking.

One folder is open at a time, so depth costs neither descriptors nor stack. Going up, `..` is compared with the folder
that the walk came from. Links are not followed.
"""

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TreeMovedError(OSError):
    """The tree's folders are being moved during the walk."""


@contextmanager
def open_folder(folder: Path | str, within: int | None = None) -> Generator[int]:
    """Yield the descriptor of a folder that is no link."""
    held = os.open(folder, FOLDER, dir_fd=within)
    try:
        yield held
    finally:
        os.close(held)


def walk_folders(root: Path, past: type[OSError] = FileNotFoundError) -> Generator[tuple[int, int], None, None]:
    """Yield a descriptor of each folder, valid until the next one, and how long its path from `root` is, with a slash
    at the end: the path itself would be copied for each folder.

    The first is `root`; a folder's entries are read when the next one is requested. A folder that fails to open with
    `past` is skipped; other errors are raised.
    """
    here, length = os.open(root, FOLDER), 0
    try:
        yield here, length
        way = [("", _identity(here), _folders(here))]  # the current path: name, identity, remaining subfolders
        while way:
            name, _, below = way[-1]
            if below:
                name = below.pop()
                try:
                    here = _move_to(here, name)
                except past:  # it was removed meanwhile
                    continue
                length += len(name) + 1
                yield here, length
                way.append((name, _identity(here), _folders(here)))
                continue
            way.pop()
            if way:
                here = _move_to(here, "..")
                length -= len(name) + 1
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
