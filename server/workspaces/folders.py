"""The folders of principals in the state folder, and the archives of those that were put away. Knows nothing of who
they are, or why they go. All of it blocks; only `set_aside` is quick.

    workspaces/NAME             where NAME's tools work
    spool/NAME                  the output of its commands
    leaving/NAME-TIME/          both on their way out: `workspace`, to be archived or put back; `rest`, to be removed
    archive/NAME-TIME.tar.gz    a workspace that was archived
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from toolgate.server.workspaces import archive as packing
from toolgate.server.workspaces import rmtree
from toolgate.server.workspaces.last_used import PRINCIPAL_NAME
from toolgate.server.workspaces.unarchive import unpack_archive
from toolgate.tools.workspace.safe_walk import open_folder, walk_folders

SUFFIX = ".tar.gz"
PART = ".part"  # of an archive that is being written


class WorkspaceInUseError(OSError):
    """It can't be now; the text says why."""


@dataclass(frozen=True, slots=True)
class WorkspaceArchive:
    """A workspace that was archived; `omission` says what of it was not."""

    path: Path
    omission: str

    def __str__(self) -> str:
        return f"{self.path.name}{self.omission and f', {self.omission},'} has what was in it"


class PrincipalFolders:
    """Those in one state folder."""

    def __init__(self, state: Path) -> None:
        self.workspaces = state / "workspaces"
        self.spools = state / "spool"
        self.leaving = state / "leaving"
        self.archive_folder = state / "archive"

    def list_names(self) -> list[str]:
        """Whoever has a folder here."""
        found = {name for folder in (self.workspaces, self.spools) for name in _list_names(folder)}
        return sorted(name for name in found if PRINCIPAL_NAME.fullmatch(name))

    def list_archives(self) -> list[Path]:
        """The oldest of a name first."""
        return sorted(self.archive_folder / name for name in _list_names(self.archive_folder) if name.endswith(SUFFIX))

    @contextmanager
    def hold_lock(self) -> Generator[None]:
        """One at a time, of however many processes. Raises InUse."""
        _private(self.leaving)
        held = os.open(self.leaving / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            raise WorkspaceInUseError("workspaces are being put away already: try again later") from None
        try:
            yield
        finally:
            os.close(held)

    def is_served(self, name: str) -> bool:
        """Whether a server that runs has this principal's folders in use."""
        return any(_is_held(path) for path in (self.spools / name).glob("*.lock"))

    def set_aside(self, name: str) -> Path:
        """Take a principal's folders away, in two renames; whoever comes now begins with nothing."""
        _private(self.leaving)
        aside = _unused_path(self.leaving, name, "")
        aside.mkdir(mode=0o700)
        (aside / "rest").mkdir(mode=0o700)
        for folder, place in ((self.spools, "rest/spool"), (self.workspaces, "workspace")):
            with suppress(FileNotFoundError):
                (folder / name).rename(aside / place)
        return aside

    def archive_workspace(self, aside: Path) -> WorkspaceArchive | None:
        """Archive what was set aside, and leave it to be removed; None: there was nothing in it. What fails is put
        back, if nobody has begun anew. Raises OSError."""
        if not _list_names(aside / "workspace"):
            self.mark_for_removal(aside)
            return None
        _private(self.archive_folder)
        made = _unused_path(self.archive_folder, _principal_of(aside), SUFFIX)
        part = made.with_name(made.name + PART)
        try:
            part.unlink(missing_ok=True)
            packed = packing.pack_folder(aside / "workspace", part)
            part.rename(made)
            _sync(self.archive_folder)
        except BaseException:
            part.unlink(missing_ok=True)
            self.put_back(aside)
            raise
        self.mark_for_removal(aside)
        return WorkspaceArchive(made, packed.omission)

    def mark_for_removal(self, aside: Path) -> None:
        """From now on it is only to be removed."""
        with suppress(FileNotFoundError):
            (aside / "workspace").rename(aside / "rest" / "workspace")

    def put_back(self, aside: Path) -> None:
        """Nothing happens where its owner has begun anew: then it stays aside, and is tried again. Raises OSError, and
        NotADirectoryError for what is no folder: a link would lead whoever works there elsewhere."""
        try:
            if not stat.S_ISDIR((aside / "workspace").lstat().st_mode):
                raise NotADirectoryError(f"{aside / 'workspace'} is no folder")
            (aside / "workspace").rename(self.workspaces / _principal_of(aside))  # in the place of an empty one too
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise

    def remove(self, aside: Path) -> None:
        """Remove what is left of it. Raises OSError; the rest is tried again."""
        for stage in aside.glob(f"{rmtree.STAGE}*"):
            rmtree.remove_stage(stage)
        with suppress(FileNotFoundError):
            rmtree.remove_tree(aside / "rest")
        if not (aside / "workspace").exists():
            rmtree.remove_tree(aside)

    def list_leaving(self) -> list[Path]:
        """What was set aside and is still there."""
        names = (
            name for name in _list_names(self.leaving) if PRINCIPAL_NAME.match(name) or name.startswith(rmtree.STAGE)
        )
        return sorted(self.leaving / name for name in names)

    def restore(self, archive: Path) -> Path:
        """Make a workspace out of an archive, which is kept. Raises InUse where its owner has one that is not empty,
        and OSError."""
        name = _principal_of(archive)
        place = self.workspaces / name
        if _list_names(place):
            raise WorkspaceInUseError(f"{name} has a workspace with something in it: archive that first")
        _private(self.leaving)
        aside = _unused_path(self.leaving, name, "")
        aside.mkdir(mode=0o700)
        (aside / "rest").mkdir(mode=0o700)
        _private(self.workspaces)
        try:
            unpack_archive(archive, aside / "rest" / "workspace")
            (aside / "rest" / "workspace").rename(place)
        finally:
            self.remove(aside)
        return place


def disk_usage(folder: Path) -> int:
    """Bytes on disk, as far as they can be seen."""
    total = 0
    with suppress(OSError):  # it is being moved about
        for here, _ in walk_folders(folder, OSError):
            for name in os.listdir(here):
                with suppress(OSError):
                    total += os.stat(name, dir_fd=here, follow_symlinks=False).st_blocks * 512
    return total


def _unused_path(folder: Path, name: str, suffix: str) -> Path:
    """A path where nothing is: two of one second are numbered."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    tried = (folder / f"{name}-{stamp}{more}{suffix}" for more in ("", *(f".{number}" for number in range(1, 1_000))))
    return next(path for path in tried if not path.exists())


def _principal_of(path: Path) -> str:
    """Whose it is."""
    found = PRINCIPAL_NAME.match(path.name)
    if found is None:
        raise WorkspaceInUseError(f"{path.name} is not called like what was put away here")
    return found[0]


def _list_names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_held(path: Path) -> bool:
    try:
        held = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(held)
    return False


def _private(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)


def _sync(folder: Path) -> None:
    with open_folder(folder) as held:
        os.fsync(held)
