"""Assign a system user to each workspace, for its commands. Everything blocks.

The folders are the record: a workspace's owner is its user, and a uid is free again when its folder is gone. Servers of
several states share a range. They record each uid's folder in CLAIMS until the machine restarts.
"""

import errno
import fcntl
import hashlib
import os
import pwd
import stat
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path

from toolgate.tools.api.regular_file import open_or_replace
from toolgate.tools.workspace.files.safe_walk import walk_folders
from toolgate.tools.workspace.output.spool import Spool

LOCK = ".users"
NO_PLACE = (errno.ENOENT, errno.EROFS, errno.EACCES, errno.EPERM)  # as in a container, which has no second server
CLAIMS = Path("/run/toolgate-users")  # uid → a link to the folder of that user
LOOK_AHEAD = 500  # users: a burst of new people costs one look
LOOK_AGAIN = 60.0  # seconds: an operator may copy folders with their owners meanwhile


class NoFreeUserError(OSError):
    """Every uid of the range has a workspace."""


class FreeUsers:
    """The next users of one server's workspaces, as one look at all workspaces and processes found them free.

    A look takes time in proportion to what is there, and a burst of new people needs a user each. Only this server and
    others on its state assign from these users, in order; a user assigned elsewhere ends the list.
    """

    def __init__(self) -> None:
        self._users: deque[int] = deque()
        self._last = -1  # the user that was assigned last, when this list was right
        self._until = 0.0  # its end on the monotonic clock

    def choose(self, root: Path, uids: range, last: int) -> int:
        """Return the next free user after the `last` one, so that a former user's files elsewhere get no new owner
        soon. Raises NoFreeUserError."""
        uid = self._take(root) if last == self._last and time.monotonic() < self._until else None
        if uid is None:
            self._users = deque(islice(_find_free(root, uids, last), LOOK_AHEAD))
            self._until = time.monotonic() + LOOK_AGAIN
            uid = self._take(root)
        if uid is None:
            remedy = "remove unused workspaces, or widen --sandbox-uids"
            raise NoFreeUserError(f"all {len(uids) - 2} users for sandboxes are taken: {remedy}")
        self._last = uid
        return uid

    def _take(self, root: Path) -> int | None:
        while self._users:
            uid = self._users.popleft()
            if not runs_process(uid) and _is_free(uid) and _claim(uid, root):
                return uid
        return None


def assign_user(root: Path, uids: range, free: FreeUsers) -> int:
    """Return the uid of `root`, a folder beside those of other principals. A new one gets all its files."""
    with _lock(root.parent) as record:  # another server on this state may do the same
        found = root.lstat()
        if found.st_uid in uids and _claim(found.st_uid, root):
            return found.st_uid
        uid = found.st_gid  # the intended owner of an interrupted change
        if uid not in uids or uid == found.st_uid or not _claim(uid, root):
            uid = free.choose(root, uids, _read_last(record))
            os.pwrite(record, b"%010d" % uid, 0)
        _change_owner(root, uid)
        return uid


def list_active_users() -> set[int]:
    """Return the users that run a process."""
    users: set[int] = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with suppress(OSError):  # it has ended
                users |= _parse_uids(Path(entry.path, "status").read_bytes())
    return users


def runs_process(uid: int) -> bool:
    """Return whether a process runs as this user. One system call, however many there are."""
    try:
        os.getpriority(os.PRIO_USER, uid)
    except ProcessLookupError:
        return False
    return True


def _parse_uids(status: bytes) -> set[int]:
    """Return the real and effective user. The /proc folder's owner is root for an untraceable process."""
    line = next((line for line in status.splitlines() if line.startswith(b"Uid:")), b"Uid:")
    return set(map(int, line.split()[1:3]))


def end_deserted(workspaces: Path, spools: Path, uids: range, end: Callable[[int], None]) -> list[str]:
    """End the processes of each workspace that no living server uses; return those workspaces. Raises OSError."""
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
    except FileNotFoundError:  # no command ever ran, or the spool was removed: it has no server
        end()
        return True


def _find_free(root: Path, uids: range, last: int) -> Iterator[int]:
    """Yield the users that no workspace beside `root` and no process has, from the one after the last."""
    with os.scandir(root.parent) as found:
        status = [entry.stat(follow_symlinks=False) for entry in found]
    taken = {each.st_uid for each in status} | {each.st_gid for each in status} | list_active_users()
    pool = uids[1:-1]  # the first is for trials, the last stays unused
    begin = pool.index(last) + 1 if last in pool else _first_index(root.parent, len(pool))
    return (uid for uid in chain(pool[begin:], pool[:begin]) if uid not in taken)


def _is_free(uid: int) -> bool:
    """Return whether the system has no such user."""
    with suppress(KeyError):
        pwd.getpwuid(uid)
        return False
    return True


def _claim(uid: int, root: Path) -> bool:
    """Claim the user for this folder, for all servers here. False if it is another existing folder's."""
    try:
        CLAIMS.mkdir(mode=0o700, exist_ok=True)
        _check_private(CLAIMS)
        with _lock(CLAIMS):
            claim, mine = CLAIMS / str(uid), os.path.realpath(root)
            if claim.is_symlink():
                whose = os.readlink(claim)
                if whose != mine and _owner(whose) in (uid, os.geteuid()):  # root-owned: about to be given away
                    return False
                claim.unlink()
            claim.symlink_to(mine)
    except OSError as error:
        if error.errno not in NO_PLACE:
            raise
    return True


def _check_private(folder: Path) -> None:
    """Raise OSError if another user could write there."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise OSError(errno.EEXIST, f"{folder} must be a folder that root alone can write to")


def _owner(folder: str) -> int | None:
    with suppress(OSError):
        return os.lstat(folder).st_uid
    return None


def _first_index(folder: Path, size: int) -> int:
    """Return a start that differs by state folder, so that two servers seldom pick the same."""
    return int.from_bytes(hashlib.sha256(os.fsencode(os.path.realpath(folder))).digest()[:8], "big") % max(1, size)


def _read_last(record: int) -> int:
    text = os.pread(record, 10, 0)
    return int(text) if text.isdigit() else -1


def _change_owner(root: Path, uid: int) -> None:
    """Change the owner of the previous owner's files: a hard link may name anyone's. Links are not followed. The root's
    group marks the intended owner first, and its owner the end of the change."""
    owner = root.lstat().st_uid
    os.chown(root, -1, uid, follow_symlinks=False)
    for here, _ in walk_folders(root):
        for name in os.listdir(here):
            _pass_on(name, here, owner, uid)
    os.chown(root, uid, uid, follow_symlinks=False)


def _pass_on(name: str, folder: int, owner: int, uid: int) -> None:
    """Change the owner of the opened file, whatever has its name next."""
    held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if os.fstat(held).st_uid == owner:
            os.chown(f"/proc/self/fd/{held}", uid, uid)
    finally:
        os.close(held)


@contextmanager
def _lock(folder: Path) -> Generator[int, None, None]:
    """Lock and yield the file that holds the last uid."""
    descriptor = open_or_replace(folder / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
