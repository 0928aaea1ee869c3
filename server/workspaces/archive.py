"""A folder into one compressed file. Knows nothing of whose it is. All of it blocks.

What somebody hostile left is packed as what it is: a link as a link, never what it points at, a hole as a hole. No
devices and no sockets, and no file of somebody else's that was only linked there. What its owner has closed is opened
to be read, and closed again.
"""

import os
import stat
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from toolgate.server.workspaces import sparse_files
from toolgate.server.workspaces.rmtree import set_mode
from toolgate.tools.workspace.safe_walk import FOLDER, walk_folders

MAX_BYTES = 64 * 2**30  # of data, which takes half an hour; holes are none
MAX_NAMES = 4 * 2**30  # bytes of paths, which are long where folders are deep
MAX_ENTRIES = 4_000_000
LEVEL = 6  # of compression
CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
READ_FLAGS = (
    os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
)  # a FIFO that took a file's place holds nobody up
KINDS = {stat.S_IFLNK: tarfile.SYMTYPE, stat.S_IFIFO: tarfile.FIFOTYPE, stat.S_IFREG: tarfile.REGTYPE}

Identity = tuple[int, int]  # device and inode
Data = IO[bytes] | sparse_files.SparseReader  # what is stored of a file


class ArchiveError(OSError):
    """It is too much, or was moved about meanwhile."""


@dataclass(slots=True)
class ArchiveTotals:
    """What is in an archive."""

    entries: int = 0
    bytes: int = 0
    names: int = 0  # characters
    omitted: int = 0  # devices, sockets, files of others

    @property
    def omission(self) -> str:
        """What is not in it, in words; "" where all is."""
        if not self.omitted:
            return ""
        entries = "entry" if self.omitted == 1 else "entries"
        return f"without {self.omitted:,} {entries} (sockets, devices, files of others)"

    def check(self) -> None:
        """Raises Unpackable."""
        if self.entries > MAX_ENTRIES or self.bytes > MAX_BYTES or self.names > MAX_NAMES:
            raise ArchiveError(f"there is too much in it: over {MAX_BYTES >> 30} GiB or {MAX_ENTRIES:,} entries")


def pack_folder(folder: Path, archive: Path) -> ArchiveTotals:
    """Write what is in `folder` to a new file, for its owner alone, and see that it is on disk. Raises OSError."""
    _check_size(folder)
    with open(os.open(archive, CREATE_FLAGS, 0o600), "wb") as raw:
        with tarfile.open(fileobj=raw, mode="w:gz", format=tarfile.PAX_FORMAT, compresslevel=LEVEL) as tar:
            packed = _FolderPacker(tar, os.lstat(folder).st_uid).pack(folder)
        raw.flush()
        os.fsync(raw.fileno())
    return packed


def _check_size(folder: Path) -> None:
    """What is too much is refused before any of it is read. Raises Unpackable."""
    found = ArchiveTotals()
    linked: set[Identity] = set()
    for here, _ in walk_folders(folder, OSError):
        with os.scandir(here) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                found.entries += 1
                identity = status.st_dev, status.st_ino
                if stat.S_ISREG(status.st_mode) and identity not in linked:
                    found.bytes += min(status.st_size, status.st_blocks * 512)
                    linked |= {identity} if status.st_nlink > 1 else set()
                found.check()


class _FolderPacker:
    """Goes down into each folder and up again with one folder open, so that depth costs no descriptors; going up, it
    looks whether `..` is where it came from."""

    def __init__(self, tar: tarfile.TarFile, owner: int) -> None:
        self.tar = tar
        self.owner = owner
        self.packed = ArchiveTotals()
        self.path = ""  # of the folder that is open, with a slash behind
        self.here = -1
        self.linked: dict[Identity, str] = {}  # files of several names → the first

    def pack(self, folder: Path) -> ArchiveTotals:
        self.here = os.open(folder, FOLDER)
        try:
            way = [("", 0o700, self._identity(), self._add_entries())]  # down to here, with the folders still to come
            while way:
                name, mode, _, folders = way[-1]
                if folders:
                    name, mode = folders.pop()
                    self._enter(name)
                    self.path += name + "/"
                    way.append((name, mode, self._identity(), self._add_entries()))
                    continue
                way.pop()
                if way:
                    self._enter("..")
                    self.path = self.path[: -len(name) - 1]
                    if self._identity() != way[-1][2]:
                        raise ArchiveError("its folders are being moved about")
                    if mode & 0o700 != 0o700:
                        set_mode(self.here, name, mode=mode)
        finally:
            os.close(self.here)
        return self.packed

    def _enter(self, name: str) -> None:
        there = os.open(name, FOLDER, dir_fd=self.here)
        os.close(self.here)
        self.here = there

    def _identity(self) -> Identity:
        found = os.fstat(self.here)
        return found.st_dev, found.st_ino

    def _add_entries(self) -> list[tuple[str, int]]:
        """Pack what is right in the open folder; gives the names of the folders there, and their modes."""
        folders: list[tuple[str, int]] = []
        with os.scandir(self.here) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    self._add(self._info(tarfile.DIRTYPE, entry.name, found))
                    mode = stat.S_IMODE(found.st_mode)
                    if mode & 0o700 != 0o700:
                        set_mode(self.here, entry.name)
                    folders.append((entry.name, mode))
                else:
                    self._add_entry(entry.name, found)
        return folders

    def _add_entry(self, name: str, found: os.stat_result) -> None:
        kind = KINDS.get(stat.S_IFMT(found.st_mode))
        first = self.linked.get((found.st_dev, found.st_ino))
        if kind is None or not self._is_own(found):
            self.packed.omitted += 1
        elif kind == tarfile.SYMTYPE:
            self._add_link(kind, name, found, os.readlink(name, dir_fd=self.here))
        elif kind == tarfile.FIFOTYPE:
            self._add(self._info(kind, name, found))
        elif first is not None:
            self._add_link(tarfile.LNKTYPE, name, found, first)
        else:
            self._add_file(name, found)

    def _add_link(self, kind: bytes, name: str, found: os.stat_result, target: str) -> None:
        info = self._info(kind, name, found)
        info.linkname = target
        self._add(info)

    def _is_own(self, found: os.stat_result) -> bool:
        """Whoever may make a folder can link to files there that they can't read: what is another's has one name."""
        return found.st_nlink == 1 or found.st_uid == self.owner

    def _add_file(self, name: str, listed: os.stat_result) -> None:
        mode = stat.S_IMODE(listed.st_mode)
        if mode & stat.S_IRUSR:
            self._read(name, mode)
            return
        set_mode(self.here, name, stat.S_IFREG, mode | stat.S_IRUSR)
        self._read(name, mode)
        set_mode(self.here, name, stat.S_IFREG, mode)

    def _read(self, name: str, mode: int) -> None:
        with open(os.open(name, READ_FLAGS, dir_fd=self.here), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or not self._is_own(found):  # another one now
                raise ArchiveError("its files are being replaced")
            if found.st_nlink > 1:
                self.linked[found.st_dev, found.st_ino] = self.path + name
            info = self._info(tarfile.REGTYPE, name, found, mode)
            info.size = found.st_size
            data: Data = file
            held = sparse_files.find_data(file.fileno(), found)
            if (
                held is not None
                and (joined := sparse_files.SparseReader(file, held, found.st_size)).size <= sparse_files.MAX_STORED
            ):
                info.pax_headers, info.size, data = sparse_files.pax_headers(found.st_size), joined.size, joined
            self.packed.bytes += info.size
            self._add(info, data)

    def _info(self, kind: bytes, name: str, found: os.stat_result, mode: int | None = None) -> tarfile.TarInfo:
        info = tarfile.TarInfo(self.path + name)
        info.type, info.mtime = kind, int(found.st_mtime)
        info.mode = (stat.S_IMODE(found.st_mode) if mode is None else mode) & 0o777
        return info

    def _add(self, info: tarfile.TarInfo, file: Data | None = None) -> None:
        self.packed.entries += 1
        self.packed.names += len(info.name) + len(info.linkname)
        self.packed.check()
        self.tar.addfile(info, file)
        self.tar.members.clear()  # type: ignore[attr-defined]  # it would remember each
