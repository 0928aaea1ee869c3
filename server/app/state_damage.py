"""Describe damaged files of a state folder, and check single files for damage."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from toolgate.tools.api.regular_file import open_regular
from toolgate.tools.api.text.json_text import JsonError

HEALS = "the server makes it again"


class StateDamage(msgspec.Struct, frozen=True):
    """A damaged file: what is wrong, and what to do. `heals`: the server fixes it by itself."""

    path: Path
    problem: str
    remedy: str = HEALS
    heals: bool = True


def check_file(
    path: Path, read: Callable[[], object], remedy: str = HEALS, *, heals: bool = True
) -> Iterator[StateDamage]:
    """Yield the damage of a file that `read` can't read. A missing file is none."""
    if not os.path.lexists(path):
        return
    try:
        read()
    except OSError as error:
        yield StateDamage(path, (error.strerror or str(error)).lower(), remedy, heals)
    except (JsonError, ValueError) as error:
        yield StateDamage(path, str(error)[:100], remedy, heals)


def probe_file(path: Path, remedy: str = HEALS, *, heals: bool = True) -> Iterator[StateDamage]:
    """Yield the damage of a file that can't be opened."""
    yield from check_file(path, lambda: os.close(open_regular(path, os.O_RDONLY)), remedy, heals=heals)


def list_folder(folder: Path) -> list[Path]:
    """Return what is in a folder, but for drafts. A folder that can't be read has nothing."""
    try:
        return sorted(folder / name for name in os.listdir(folder) if not name.startswith("."))
    except OSError:
        return []
