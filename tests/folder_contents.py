"""Read folders in which other processes write meanwhile."""

import contextlib
import os
from pathlib import Path


def read_files(folder: Path) -> dict[Path, bytes]:
    """Return the content of each regular file below the folder that is still there; `rglob` takes a folder that has
    just gone for an error."""
    contents: dict[Path, bytes] = {}
    for path in (Path(place, name) for place, _, names in os.walk(folder) for name in names):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and not path.is_symlink():
                contents[path] = path.read_bytes()
    return contents


def find_folders(folder: Path, name: str) -> list[Path]:
    """Return the folders of this name below it."""
    return [Path(place, name) for place, folders, _ in os.walk(folder) if name in folders]


def has_content(file: Path) -> bool:
    """Return whether something was written to it: one that has just been made is empty."""
    return file.exists() and file.stat().st_size > 0
