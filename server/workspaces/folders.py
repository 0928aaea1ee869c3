"""Move, archive, remove and restore the folders of principals. All functions block; only `set_aside` is quick.

workspaces/NAME             where NAME's tools work
spool/NAME                  the output of its commands
leaving/NAME-TIME/          set aside: `workspace` to archive or put back, `rest` to remove
archive/NAME-TIME.tar.gz    an archived workspace
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from toolgate.server.base.principals.principal import LOCAL_NAME
from toolgate.server.workspaces.archive import pack_folder
from toolgate.server.workspaces.last_used import PRINCIPAL_NAME
from toolgate.server.workspaces.unarchive import unpack_archive
from toolgate.tools.api.regular_file import open_or_replace, open_regular
from toolgate.tools.workspace.files import rmtree
from toolgate.tools.workspace.files.safe_walk import open_folder, walk_folders

SUFFIX = ".tar.gz"
PART = ".part"  # of an unfinished archive


class WorkspaceInUseError(OSError):
    """Another process works on it; the text says what to do."""


class WorkspaceArchive(msgspec.Struct, frozen=True):
    """An archived workspace; `omission` says what it omits."""

    path: Path
    omission: str

    def __str__(self) -> str:
        return f"{self.path.name}{self.omission and f', {self.omission},'} has its contents"


class PrincipalFolders:
    """The folders in one state folder."""

    def __init__(self, state: Path) -> None:
        self.workspaces = state / "workspaces"
        self.spools = state / "spool"
        self.leaving = state / "leaving"
        self.archive_folder = state / "archive"

    def list_names(self) -> list[str]:
        """Return the principals that have a folder: people, and `local` if it has a workspace of its own."""
        own = [LOCAL_NAME] if LOCAL_NAME in _list_names(self.workspaces) else []
        return sorted([*own, *self.list_removable()])

    def list_removable(self) -> list[str]:
        """Return the principals whose folders may be archived or removed: people."""
        names = {name for folder in (self.workspaces, self.spools) for name in _list_names(folder)}
        return sorted(name for name in names if PRINCIPAL_NAME.fullmatch(name))

    def list_archives(self) -> list[Path]:
        """Return the archives, the oldest of each name first."""
        return sorted(self.archive_folder / name for name in _list_names(self.archive_folder) if name.endswith(SUFFIX))

    @contextmanager
    def hold_lock(self) -> Generator[None]:
        """Exclude other processes. Raises WorkspaceInUseError."""
        _private(self.leaving)
        descriptor = open_or_replace(self.leaving / ".lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise WorkspaceInUseError("another process archives or removes workspaces: try again later") from None
        try:
            yield
        finally:
            os.close(descriptor)

    def is_served(self, name: str) -> bool:
        """Return whether a running server uses this principal's folders."""
        return any(_is_held(path) for path in (self.spools / name).glob("*.lock"))

    def set_aside(self, name: str) -> Path:
        """Move a principal's folders away by two renames; the next call starts with empty ones."""
        aside = self._make_aside(name)
        for folder, target in ((self.spools, "rest/spool"), (self.workspaces, "workspace")):
            with suppress(FileNotFoundError):
                (folder / name).rename(aside / target)
        return aside

    def archive_workspace(self, aside: Path) -> WorkspaceArchive | None:
        """Archive what was set aside, and leave it for removal. Return None if it was empty. Raises OSError.

        On failure it is put back, unless the principal has a new workspace.
        """
        if not _list_names(aside / "workspace"):
            self.mark_for_removal(aside)
            return None
        _private(self.archive_folder)
        archive = _unused_path(self.archive_folder, _principal_of(aside), SUFFIX)
        part = archive.with_name(archive.name + PART)
        try:
            part.unlink(missing_ok=True)
            packed = pack_folder(aside / "workspace", part)
            part.rename(archive)
            with open_folder(self.archive_folder) as descriptor:
                os.fsync(descriptor)
        except BaseException:
            part.unlink(missing_ok=True)
            self.put_back(aside)
            raise
        self.mark_for_removal(aside)
        return WorkspaceArchive(archive, packed.omission)

    def mark_for_removal(self, aside: Path) -> None:
        """Leave the workspace for removal only."""
        with suppress(FileNotFoundError):
            (aside / "workspace").rename(aside / "rest" / "workspace")

    def put_back(self, aside: Path) -> None:
        """Move a workspace back, unless its owner has a new one; then it stays and is tried again.

        Raises OSError; NotADirectoryError for a link, which would lead commands elsewhere.
        """
        try:
            if not stat.S_ISDIR((aside / "workspace").lstat().st_mode):
                raise NotADirectoryError(f"{aside / 'workspace'} is not a folder")
            (aside / "workspace").rename(self.workspaces / _principal_of(aside))  # replaces an empty one too
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise

    def remove(self, aside: Path) -> None:
        """Remove the rest of it. Raises OSError; what remains is tried again."""
        for stage in aside.glob(f"{rmtree.STAGE}*"):
            rmtree.remove_stage(stage)
        with suppress(FileNotFoundError):
            rmtree.remove_tree(aside / "rest")
        if not (aside / "workspace").exists():
            rmtree.remove_tree(aside)

    def list_leaving(self) -> list[Path]:
        """Return what was set aside and is still there."""
        names = _list_names(self.leaving)
        return sorted(self.leaving / n for n in names if PRINCIPAL_NAME.match(n) or n.startswith(rmtree.STAGE))

    def restore(self, archive: Path) -> Path:
        """Restore a workspace from an archive, which stays. Return its folder.

        Raises WorkspaceInUseError where its owner has one that is not empty, and OSError.
        """
        name = _principal_of(archive)
        target = self.workspaces / name
        if _list_names(target):
            raise WorkspaceInUseError(f"{name} has a workspace that is not empty: archive it first")
        aside = self._make_aside(name)
        _private(self.workspaces)
        try:
            unpack_archive(archive, aside / "rest" / "workspace")
            (aside / "rest" / "workspace").rename(target)
        finally:
            self.remove(aside)
        return target

    def _make_aside(self, name: str) -> Path:
        _private(self.leaving)
        aside = _unused_path(self.leaving, name, "")
        aside.mkdir(mode=0o700)
        (aside / "rest").mkdir(mode=0o700)
        return aside


def disk_usage(folder: Path) -> int:
    """Return the bytes on disk of all files that can be read."""
    total = 0
    with suppress(OSError):  # it is being moved meanwhile
        for here, _ in walk_folders(folder, OSError):
            for name in os.listdir(here):
                with suppress(OSError):
                    total += os.stat(name, dir_fd=here, follow_symlinks=False).st_blocks * 512
    return total


def _unused_path(folder: Path, name: str, suffix: str) -> Path:
    """Return an unused path: two of one second are numbered."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    tried = (folder / f"{name}-{stamp}{more}{suffix}" for more in ("", *(f".{number}" for number in range(1, 1_000))))
    return next(path for path in tried if not path.exists())


def _principal_of(path: Path) -> str:
    """Return the principal of a set-aside folder or an archive."""
    names = PRINCIPAL_NAME.match(path.name)
    if names is None:
        raise WorkspaceInUseError(f"{path.name} is not the name of an archive of a workspace")
    return names[0]


def _list_names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_held(path: Path) -> bool:
    try:
        descriptor = open_regular(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _private(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
