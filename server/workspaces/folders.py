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
from toolgate.server.workspaces.last_used import NAME
from toolgate.server.workspaces.unarchive import unpack
from toolgate.tools.workspace.safe_walk import descend, opened

SUFFIX = ".tar.gz"
PART = ".part"  # of an archive that is being written


class InUse(OSError):
    """It can't be now; the text says why."""


@dataclass(frozen=True, slots=True)
class Archived:
    """A workspace that was archived; `omission` says what of it was not."""

    path: Path
    omission: str

    def __str__(self) -> str:
        return f"{self.path.name}{self.omission and f', {self.omission},'} has what was in it"


class Folders:
    """Those in one state folder."""

    def __init__(self, state: Path) -> None:
        self.workspaces = state / "workspaces"
        self.spools = state / "spool"
        self.leaving = state / "leaving"
        self.archive = state / "archive"

    def names(self) -> list[str]:
        """Whoever has a folder here."""
        found = {name for folder in (self.workspaces, self.spools) for name in _listed(folder)}
        return sorted(name for name in found if NAME.fullmatch(name))

    def archives(self) -> list[Path]:
        """The oldest of a name first."""
        return sorted(self.archive / name for name in _listed(self.archive) if name.endswith(SUFFIX))

    @contextmanager
    def alone(self) -> Generator[None]:
        """One at a time, of however many processes. Raises InUse."""
        _private(self.leaving)
        held = os.open(self.leaving / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            raise InUse("workspaces are being put away already: try again later") from None
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
        aside = _fresh(self.leaving, name, "")
        aside.mkdir(mode=0o700)
        (aside / "rest").mkdir(mode=0o700)
        for folder, place in ((self.spools, "rest/spool"), (self.workspaces, "workspace")):
            with suppress(FileNotFoundError):
                (folder / name).rename(aside / place)
        return aside

    def pack(self, aside: Path) -> Archived | None:
        """Archive what was set aside, and leave it to be removed; None: there was nothing in it. What fails is put
        back, if nobody has begun anew. Raises OSError."""
        if not _listed(aside / "workspace"):
            self.give_up(aside)
            return None
        _private(self.archive)
        made = _fresh(self.archive, _name(aside), SUFFIX)
        part = made.with_name(made.name + PART)
        try:
            part.unlink(missing_ok=True)
            packed = packing.pack(aside / "workspace", part)
            part.rename(made)
            _sync(self.archive)
        except BaseException:
            part.unlink(missing_ok=True)
            self.put_back(aside)
            raise
        self.give_up(aside)
        return Archived(made, packed.omission)

    def give_up(self, aside: Path) -> None:
        """From now on it is only to be removed."""
        with suppress(FileNotFoundError):
            (aside / "workspace").rename(aside / "rest" / "workspace")

    def put_back(self, aside: Path) -> None:
        """Nothing happens where its owner has begun anew: then it stays aside, and is tried again. Raises OSError, and
        NotADirectoryError for what is no folder: a link would lead whoever works there elsewhere."""
        try:
            if not stat.S_ISDIR((aside / "workspace").lstat().st_mode):
                raise NotADirectoryError(f"{aside / 'workspace'} is no folder")
            (aside / "workspace").rename(self.workspaces / _name(aside))  # in the place of an empty one too
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise

    def remove(self, aside: Path) -> None:
        """Remove what is left of it. Raises OSError; the rest is tried again."""
        for stage in aside.glob(f"{rmtree.STAGE}*"):
            rmtree.remove_stage(stage)
        with suppress(FileNotFoundError):
            rmtree.remove(aside / "rest")
        if not (aside / "workspace").exists():
            rmtree.remove(aside)

    def unfinished(self) -> list[Path]:
        """What was set aside and is still there."""
        names = (name for name in _listed(self.leaving) if NAME.match(name) or name.startswith(rmtree.STAGE))
        return sorted(self.leaving / name for name in names)

    def restore(self, archive: Path) -> Path:
        """Make a workspace out of an archive, which is kept. Raises InUse where its owner has one that is not empty,
        and OSError."""
        name = _name(archive)
        place = self.workspaces / name
        if _listed(place):
            raise InUse(f"{name} has a workspace with something in it: archive that first")
        _private(self.leaving)
        aside = _fresh(self.leaving, name, "")
        aside.mkdir(mode=0o700)
        (aside / "rest").mkdir(mode=0o700)
        _private(self.workspaces)
        try:
            unpack(archive, aside / "rest" / "workspace")
            (aside / "rest" / "workspace").rename(place)
        finally:
            self.remove(aside)
        return place


def size(folder: Path) -> int:
    """Bytes on disk, as far as they can be seen."""
    total = 0
    with suppress(OSError):  # it is being moved about
        for here, _ in descend(folder, OSError):
            for name in os.listdir(here):
                with suppress(OSError):
                    total += os.stat(name, dir_fd=here, follow_symlinks=False).st_blocks * 512
    return total


def _fresh(folder: Path, name: str, suffix: str) -> Path:
    """A path where nothing is: two of one second are numbered."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    tried = (folder / f"{name}-{stamp}{more}{suffix}" for more in ("", *(f".{number}" for number in range(1, 1_000))))
    return next(path for path in tried if not path.exists())


def _name(path: Path) -> str:
    """Whose it is."""
    found = NAME.match(path.name)
    if found is None:
        raise InUse(f"{path.name} is not called like what was put away here")
    return found[0]


def _listed(folder: Path) -> list[str]:
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
    with opened(folder) as held:
        os.fsync(held)
