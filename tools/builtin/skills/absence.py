"""Say why InvokeSkill does not have a skill whose folder is there."""

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from toolgate.tools.builtin.skills import frontmatter
from toolgate.tools.builtin.skills.files import MANIFEST

MAX_SCANNED = 1_000  # entries of a skill's folder that are looked at


def fold_name(name: str) -> str:
    """Return the name without capitals and with one separator, as people and models mix them up."""
    return re.sub(r"[\W_]+", "-", name.casefold()).strip("-")


def explain_absence(name: str, folders: Sequence[Sequence[Path]]) -> str:
    """Return why the skill `name` is none, or "" if nothing of that name is there; blocks.

    `folders` are the skills' folders in each place that is searched.
    """
    for inner_folders in folders:
        for folder in inner_folders:
            if fold_name(folder.name) == fold_name(name):
                return f"{folder.name} is there ({folder}), but {_find_fault(folder)}"
    return ""


def _find_fault(folder: Path) -> str:
    path = folder / MANIFEST
    try:
        found = path.lstat()
    except FileNotFoundError:
        return _explain_missing(folder)
    except OSError as error:
        return f"its SKILL.md can't be read: {(error.strerror or str(error)).lower()}"
    if not stat.S_ISREG(found.st_mode):
        return "its SKILL.md is a link, or not a file"
    head = frontmatter.read_head(path, frontmatter.to_stamp(found))
    return head.broken or f"another skill called {head.name} comes first"


def _explain_missing(folder: Path) -> str:
    """Return what is in a folder without a SKILL.md."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for _, entry in zip(range(MAX_SCANNED), entries, strict=False)]
    except OSError as error:
        return f"it can't be read: {(error.strerror or str(error)).lower()}"
    other = next((name for name in sorted(names) if name.casefold() == MANIFEST.casefold()), None)
    if other is not None:
        return f"its {other} must be called {MANIFEST}"
    if any(os.path.lexists(folder / name / MANIFEST) for name in names):
        return f"it has no {MANIFEST}: the skills in it need its path as --skills"
    return f"it has no {MANIFEST}"
