"""Which system user a principal's commands run as, where the server may choose: the owner of its workspace. Knows
folders; runs nothing. Blocking.

The folders are the record: who has a workspace has its owner's uid, and a uid is free again when its folder is gone.
"""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from toolgate.tools.sandbox.levels import free

LOCK = ".users"


class Crowded(OSError):
    """Every uid of the range has a workspace."""


def settled(root: Path, uids: range) -> int:
    """The uid of `root`, a folder among those of other principals; given to it, and to all in it, when it has none."""
    owner = root.lstat().st_uid
    if owner in uids:
        return owner
    with _alone(root.parent):
        owner = root.lstat().st_uid  # another server on this state may have been first
        if owner not in uids:
            owner = _unused(root.parent, uids)
            _give(root, owner)
    return owner


def _unused(folder: Path, uids: range) -> int:
    with os.scandir(folder) as found:
        taken = {entry.stat(follow_symlinks=False).st_uid for entry in found}
    for uid in uids[1:-1]:  # the first is for trying a sandbox out, as the last nothing ever runs
        if uid not in taken and free(uid):
            return uid
    raise Crowded(f"all of {len(uids) - 2} users for sandboxes are taken: remove workspaces that nobody needs")


def _give(root: Path, uid: int) -> None:
    """Nothing runs here yet, or it runs as root: no link is followed, and the root last says that it is done."""
    for _, folders, files, here in os.fwalk(root, topdown=False, follow_symlinks=False):
        for name in (*folders, *files):
            os.chown(name, uid, uid, dir_fd=here, follow_symlinks=False)
    os.chown(root, uid, uid, follow_symlinks=False)


@contextmanager
def _alone(folder: Path) -> Generator[None, None, None]:
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
