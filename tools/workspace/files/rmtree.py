"""Remove folders with hostile contents, however deep, without following a link. All functions block.

Below the given folder it uses an open folder and a name in it, never a path. So a process that still writes there can't
redirect it.
"""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from toolgate.tools.workspace.files.safe_walk import open_folder

PASSES = 64  # passes over a folder that is written to meanwhile
STAGE = ".removing-"


class FolderBusyError(OSError):
    """A process writes to the folder faster than it can be removed."""


def remove_tree(folder: Path) -> None:
    """Remove a folder and all its contents. Raises FileNotFoundError if it is missing. On another OSError the rest is
    in a folder beside it with a name that begins with `STAGE`.

    Subfolders are moved up beside the first before they are emptied: depth costs neither descriptors nor memory.
    """
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise NotADirectoryError(f"{folder} is not a folder")
    stage = Path(tempfile.mkdtemp(prefix=STAGE, dir=folder.parent))
    try:
        folder.rename(stage / "0")
        with open_folder(stage) as descriptor:
            _empty_stage(descriptor)
    finally:
        if not any(stage.iterdir()):
            stage.rmdir()


def remove_stage(stage: Path) -> None:
    """Continue a removal that was interrupted."""
    with open_folder(stage) as descriptor:
        _empty_stage(descriptor)
    stage.rmdir()


def set_mode(within: int, name: str, kind: int = stat.S_IFDIR, mode: int = 0o700) -> None:
    """Set the mode of a folder, or with `kind` of a file, that its owner has closed; other kinds are left unchanged.

    Raises OSError for one of another user.
    """
    if not hasattr(os, "O_PATH"):  # macOS: its chmod can act on a link itself
        os.chmod(name, mode, dir_fd=within, follow_symlinks=False)
        return
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    try:
        if stat.S_IFMT(os.fstat(descriptor).st_mode) == kind:
            os.chmod(f"/proc/self/fd/{descriptor}", mode)
    finally:
        os.close(descriptor)


def _empty_stage(stage: int) -> None:
    """Empty a folder that has only folders named by this module."""
    numbers = count(1)
    while names := os.listdir(stage):
        numbers = count(max(next(numbers), *(int(name) + 1 for name in names)))
        for name in names:
            set_mode(stage, name)
            with open_folder(name, stage) as folder:
                _clear(folder, stage, numbers)
            os.rmdir(name, dir_fd=stage)


def _clear(folder: int, stage: int, numbers: Iterator[int]) -> None:
    """Unlink what is in `folder`, and move its folders to the stage."""
    for _ in range(PASSES):
        found = False
        with os.scandir(folder) as entries:
            for entry in entries:
                found = True
                with suppress(FileNotFoundError):  # another process removed it
                    _take(folder, entry, stage, numbers)
        if not found:
            return
    raise FolderBusyError("a process still writes there")


def _take(folder: int, entry: "os.DirEntry[str]", stage: int, numbers: Iterator[int]) -> None:
    if entry.is_dir(follow_symlinks=False):
        set_mode(folder, entry.name)  # moving a folder takes write permission in it
        os.rename(entry.name, str(next(numbers)), src_dir_fd=folder, dst_dir_fd=stage)
    else:
        os.unlink(entry.name, dir_fd=folder)
