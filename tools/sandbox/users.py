"""Assign a system user to each workspace; its commands run as that user. Blocking.

The folders are the record: the owner of a workspace is its user, and a uid is free again when its folder is gone.
Servers of several states share a range: each records in CLAIMS, until the machine restarts, whose a uid is.
"""

import errno
import fcntl
import hashlib
import os
import pwd
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path

from toolgate.tools.workspace.safe_walk import walk_folders
from toolgate.tools.workspace.spool import Spool

LOCK = ".users"
NO_PLACE = (errno.ENOENT, errno.EROFS, errno.EACCES, errno.EPERM)  # as in a container, which has no second server
CLAIMS = Path("/run/toolgate-users")  # a link a uid, to the folder whose user that is


class NoFreeUserError(OSError):
    """Every uid of the range has a workspace."""


def assign_user(root: Path, uids: range) -> int:
    """The uid of `root`, a folder among those of other principals; given to it, and to all in it, when it has none."""
    with _lock(root.parent) as record:  # another server on this state may be at it
        found = root.lstat()
        if found.st_uid in uids and _claim(found.st_uid, root):
            return found.st_uid
        uid = found.st_gid  # whom it was about to be given to, where that was broken off
        if uid not in uids or uid == found.st_uid or not _claim(uid, root):
            uid = _choose_uid(root, uids, _read_last(record))
            os.pwrite(record, b"%010d" % uid, 0)
        _change_owner(root, uid)
        return uid


def list_active_users() -> set[int]:
    """The users that something runs as."""
    users: set[int] = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with suppress(OSError):  # it has ended
                users |= _parse_uids(Path(entry.path, "status").read_bytes())
    return users


def _parse_uids(status: bytes) -> set[int]:
    """The real and the effective one: whose process it is by its folder is root's where it may not be looked into."""
    line = next((line for line in status.splitlines() if line.startswith(b"Uid:")), b"Uid:")
    return set(map(int, line.split()[1:3]))


def end_deserted(workspaces: Path, spools: Path, uids: range, end: Callable[[int], None]) -> list[str]:
    """Have all ended that runs as the user of a workspace which no living server has in use; whose they are. Raises
    OSError."""
    with os.scandir(workspaces) as found:
        owners = {entry.name: entry.stat(follow_symlinks=False).st_uid for entry in found}
    running = list_active_users()
    swept: list[str] = []
    for name, uid in owners.items():
        if uid in uids and uid in running and _end_if_deserted(Spool(spools / name), partial(end, uid)):
            swept.append(name)
    return swept


def _end_if_deserted(spool: Spool, end: Callable[[], None]) -> bool:
    try:
        return spool.if_deserted(end)
    except FileNotFoundError:  # no command of it ever ran, or the spool was removed: it has no server
        end()
        return True


def _choose_uid(root: Path, uids: range, last: int) -> int:
    """The next after the one that was given last: what its former owner left somewhere is not soon another's."""
    with os.scandir(root.parent) as found:
        status = [entry.stat(follow_symlinks=False) for entry in found]
    taken = {each.st_uid for each in status} | {each.st_gid for each in status} | list_active_users()
    pool = uids[1:-1]  # the first is for trying a sandbox out, as the last nothing ever runs
    begin = pool.index(last) + 1 if last in pool else _first_index(root.parent, len(pool))
    for uid in chain(pool[begin:], pool[:begin]):
        if uid not in taken and _is_free(uid) and _claim(uid, root):
            return uid
    mend = "remove unused workspaces, or widen --sandbox-uids"
    raise NoFreeUserError(f"all {len(pool)} users for sandboxes are taken: {mend}")


def _is_free(uid: int) -> bool:
    """Whether the system knows no such user."""
    with suppress(KeyError):
        pwd.getpwuid(uid)
        return False
    return True


def _claim(uid: int, root: Path) -> bool:
    """Whether the user is this folder's from now on, for all servers here; no, if it is another's that is there."""
    try:
        CLAIMS.mkdir(mode=0o700, exist_ok=True)
        _check_private(CLAIMS)
        with _lock(CLAIMS):
            claim, mine = CLAIMS / str(uid), os.path.realpath(root)
            if claim.is_symlink():
                whose = os.readlink(claim)
                if whose != mine and _owner(whose) in (uid, os.geteuid()):  # ours: it is about to be given
                    return False
                claim.unlink()
            claim.symlink_to(mine)
    except OSError as error:
        if error.errno not in NO_PLACE:
            raise
    return True


def _check_private(folder: Path) -> None:
    """Raises OSError where another user could write."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise OSError(errno.EEXIST, f"{folder} must be a folder that root alone can write to")


def _owner(folder: str) -> int | None:
    with suppress(OSError):
        return os.lstat(folder).st_uid
    return None


def _first_index(folder: Path, size: int) -> int:
    """Somewhere else for each state folder, so that servers of two seldom meet."""
    return int.from_bytes(hashlib.sha256(os.fsencode(os.path.realpath(folder))).digest()[:8], "big") % max(1, size)


def _read_last(record: int) -> int:
    text = os.pread(record, 10, 0)
    return int(text) if text.isdigit() else -1


def _change_owner(root: Path, uid: int) -> None:
    """What was the owner's: a hard link can be to a file of anybody's. No link is followed. The root's group says first
    who is to have it, and its owner last that it is done."""
    owner = root.lstat().st_uid
    os.chown(root, -1, uid, follow_symlinks=False)
    for here, _ in walk_folders(root):
        for name in os.listdir(here):
            _pass_on(name, here, owner, uid)
    os.chown(root, uid, uid, follow_symlinks=False)


def _pass_on(name: str, folder: int, owner: int, uid: int) -> None:
    """What is open now, whatever has the name next."""
    held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if os.fstat(held).st_uid == owner:
            os.chown(f"/proc/self/fd/{held}", uid, uid)
    finally:
        os.close(held)


@contextmanager
def _lock(folder: Path) -> Generator[int, None, None]:
    """The file that holds the uid given last."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
