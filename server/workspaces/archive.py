"""Pack a folder, however hostile its contents, into one compressed file. All functions block.

A link is packed as a link, never as its target; a hole as a hole. Devices, sockets and other users' hard-linked files
are omitted, and counted. A folder closed by its owner is opened for reading, and closed again. Memory holds names, not
paths.
"""

import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from toolgate.server.workspaces import folder_names, sparse_files
from toolgate.server.workspaces.folder_names import FolderName
from toolgate.tools.workspace.files.rmtree import set_mode
from toolgate.tools.workspace.files.safe_walk import FOLDER, walk_folders

MAX_BYTES = 64 * 2**30  # of data, which takes half an hour; holes do not count
MAX_PATHS = 4 * 2**30  # characters of paths in the archive, which take half a minute
MAX_STEPS = 100_000_000  # from folder to folder while it is unpacked, which take some minutes
MAX_NAMES = 256 * 2**20  # bytes of names, each counted once
MAX_LINKED = 500_000  # files with several names, which are remembered: 400 bytes and a name each
MAX_ENTRIES = 4_000_000
LEVEL = 6  # of compression
CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO in place of a file does not block
KINDS = {stat.S_IFLNK: tarfile.SYMTYPE, stat.S_IFIFO: tarfile.FIFOTYPE, stat.S_IFREG: tarfile.REGTYPE}

Identity = tuple[int, int]  # device and inode
T = TypeVar("T")
Data = IO[bytes] | sparse_files.SparseReader  # what is stored of a file


class ArchiveError(OSError):
    """The folder or archive is too large, damaged, or changed meanwhile."""


class ArchiveTotals(msgspec.Struct):
    """The size of an archive's contents."""

    entries: int = 0
    bytes: int = 0
    names: int = 0  # characters, and the memory of folders that are too deep for whole paths
    paths: int = 0  # characters of names, with the folders above
    steps: int = 0  # from folder to folder, while it is unpacked
    omitted: int = 0  # devices, sockets, other users' files

    @property
    def omission(self) -> str:
        """Return what the archive omits, in words, or ""."""
        if not self.omitted:
            return ""
        entries = "entry" if self.omitted == 1 else "entries"
        return f"without {self.omitted:,} {entries} (sockets, devices, files of others)"

    def count_steps(self, steps: int) -> None:
        """Count steps from folder to folder. Raises ArchiveError beyond the limit."""
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise ArchiveError("files in folders that are too deep have several names")

    def count_names(self, size: int) -> None:
        """Count bytes of names that are held. Raises ArchiveError beyond the limit."""
        self.names += size
        if self.names > MAX_NAMES:
            raise ArchiveError("the names in the folder are too long, or its folders too deep")

    def count(self, path: int, name: int, size: int = 0) -> None:
        """Count an entry whose path and name have so many characters. Raises ArchiveError beyond a limit."""
        self.entries += 1
        self.paths += path
        self.bytes += size
        self.count_names(name)
        if self.entries > MAX_ENTRIES or self.bytes > MAX_BYTES:
            raise ArchiveError(f"the folder is too large: over {MAX_BYTES >> 30} GiB or {MAX_ENTRIES:,} entries")
        if self.paths > MAX_PATHS:
            raise ArchiveError("the paths in the folder are too long")


def pack_folder(folder: Path, archive: Path, is_wanted: Callable[[], bool] = lambda: True) -> ArchiveTotals:
    """Write the contents of `folder` to a new private file, and sync it. It ends soon after `is_wanted` returns False.
    Raises OSError."""
    _check_size(folder, is_wanted)
    with open(os.open(archive, CREATE_FLAGS, 0o600), "wb") as raw:
        sink: Any = _WantedFile(raw, is_wanted)
        with tarfile.open(fileobj=sink, mode="w:gz", format=tarfile.PAX_FORMAT, compresslevel=LEVEL) as tar:
            packed = _FolderPacker(tar, os.lstat(folder).st_uid).pack(folder)
        raw.flush()
        os.fsync(raw.fileno())
    return packed


def _check_wanted(is_wanted: Callable[[], bool]) -> None:
    if not is_wanted():
        raise ArchiveError("the archive is not wanted any more")


class _WantedFile:
    """The file of an archive, for as long as it is wanted."""

    def __init__(self, file: IO[bytes], is_wanted: Callable[[], bool]) -> None:
        self._file = file
        self._is_wanted = is_wanted

    def write(self, data: bytes) -> int:
        _check_wanted(self._is_wanted)
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()


def _check_size(folder: Path, is_wanted: Callable[[], bool]) -> None:
    """Raise ArchiveError for a folder that is too large, before any file is read."""
    totals = ArchiveTotals()
    linked: dict[Identity, int] = {}  # files with several names → how long the path of the first is
    for here, path_length in walk_folders(folder, OSError):
        _check_wanted(is_wanted)
        with os.scandir(here) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                length = min(path_length, folder_names.MAX_PATH) + len(entry.name)
                first, size = None, 0
                if stat.S_ISREG(status.st_mode):
                    first = _remember(linked, status, length)
                    size = min(status.st_size, status.st_blocks * 512) if first is None else 0
                totals.count(length + (first or 0), len(entry.name), size)


def _remember(linked: dict[Identity, T], status: os.stat_result, value: T) -> T | None:
    """Return the value of a file's first name. Remember `value` for a first one, where there are several."""
    identity = status.st_dev, status.st_ino
    first = linked.get(identity)
    if first is None and status.st_nlink > 1:
        if len(linked) >= MAX_LINKED:
            raise ArchiveError(f"over {MAX_LINKED:,} files in the folder have several names")
        linked[identity] = value
    return first


class _FolderPacker:
    """Pack a tree with one folder open at a time, so that depth costs no descriptors.

    On the way up it checks that `..` is the folder it came from.
    """

    def __init__(self, tar: tarfile.TarFile, owner: int) -> None:
        self.tar = tar
        self.owner = owner
        self.packed = ArchiveTotals()
        self.folders = folder_names.PackedFolders()
        self.folder = FolderName()  # the open one
        self.prefix = ""  # of names in it
        self.here = -1
        self.linked: dict[Identity, tuple[FolderName, str]] = {}  # files with several names → the first

    def pack(self, folder: Path) -> ArchiveTotals:
        self.here = os.open(folder, FOLDER)
        try:
            # the folders down to here, each with its subfolders to visit
            path_down = [(self.folder, 0o700, self._identity(), self._add_entries())]
            while path_down:
                opened, mode, _, folders = path_down[-1]
                if folders:
                    opened, mode = folders.pop()
                    self._enter(opened.name, opened)
                    path_down.append((opened, mode, self._identity(), self._add_entries()))
                    continue
                path_down.pop()
                if path_down:
                    self._enter("..", path_down[-1][0])
                    if self._identity() != path_down[-1][2]:
                        raise ArchiveError("its folders are being moved meanwhile")
                    if mode & 0o700 != 0o700:
                        set_mode(self.here, opened.name, mode=mode)
        finally:
            os.close(self.here)
        return self.packed

    def _enter(self, name: str, folder: FolderName) -> None:
        there = os.open(name, FOLDER, dir_fd=self.here)
        os.close(self.here)
        self.here = there
        self.folder, self.prefix = folder, folder.prefix
        self.packed.count_steps(1)

    def _identity(self) -> Identity:
        status = os.fstat(self.here)
        return status.st_dev, status.st_ino

    def _add_entries(self) -> list[tuple[FolderName, int]]:
        """Pack the files of the open folder. Return its subfolders and their modes."""
        folders: list[tuple[FolderName, int]] = []
        with os.scandir(self.here) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    folder, held = self.folders.add(self.folder, entry.name)
                    self.packed.count_names(held)
                    info = self._info(tarfile.DIRTYPE, entry.name, status)
                    folder_names.name_folders(info, {folder_names.OWN_NUMBER: folder.number})
                    self._add(info)
                    mode = stat.S_IMODE(status.st_mode)
                    if mode & 0o700 != 0o700:
                        set_mode(self.here, entry.name)
                    folders.append((folder, mode))
                else:
                    self._add_entry(entry.name, status)
        return folders

    def _add_entry(self, name: str, status: os.stat_result) -> None:
        kind = KINDS.get(stat.S_IFMT(status.st_mode))
        first = self.linked.get((status.st_dev, status.st_ino))
        if kind is None or not self._is_own(status):
            self.packed.omitted += 1
        elif kind == tarfile.SYMTYPE:
            info = self._info(kind, name, status)
            info.linkname = os.readlink(name, dir_fd=self.here)
            self._add(info)
        elif kind == tarfile.FIFOTYPE:
            self._add(self._info(kind, name, status))
        elif first is not None:
            self._add_hard_link(name, status, *first)
        else:
            self._add_file(name, status)

    def _add_hard_link(self, name: str, status: os.stat_result, folder: FolderName, first: str) -> None:
        info = self._info(tarfile.LNKTYPE, name, status)
        info.linkname = folder.prefix + first
        folder_names.name_folders(info, {folder_names.TARGET_FOLDER: folder.number})
        if folder is not self.folder:
            self.packed.count_steps(2 * (folder.depth + self.folder.depth))
        self._add(info)

    def _is_own(self, status: os.stat_result) -> bool:
        """Return whether the file belongs to the owner: people can hard-link files that they can't read."""
        return status.st_nlink == 1 or status.st_uid == self.owner

    def _add_file(self, name: str, status: os.stat_result) -> None:
        mode = stat.S_IMODE(status.st_mode)
        if mode & stat.S_IRUSR:
            self._read(name, mode)
            return
        set_mode(self.here, name, stat.S_IFREG, mode | stat.S_IRUSR)
        self._read(name, mode)
        set_mode(self.here, name, stat.S_IFREG, mode)

    def _read(self, name: str, mode: int) -> None:
        with open(os.open(name, READ_FLAGS, dir_fd=self.here), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or not self._is_own(status):  # another file now
                raise ArchiveError("its files are being replaced meanwhile")
            _remember(self.linked, status, (self.folder, name))
            info = self._info(tarfile.REGTYPE, name, status, mode)
            info.size = status.st_size
            data: Data = file
            data_map = sparse_files.find_data(file.fileno(), status)
            sparse = sparse_files.SparseReader(file, data_map, status.st_size) if data_map is not None else None
            if sparse is not None and sparse.size <= sparse_files.MAX_STORED:
                info.pax_headers = {**info.pax_headers, **sparse_files.pax_headers(status.st_size)}
                info.size, data = sparse.size, sparse
            self._add(info, data)

    def _info(self, kind: bytes, name: str, status: os.stat_result, mode: int | None = None) -> tarfile.TarInfo:
        info = tarfile.TarInfo(self.prefix + name)
        folder_names.name_folders(info, {folder_names.IN_FOLDER: self.folder.number})
        info.type, info.mtime = kind, int(status.st_mtime)
        info.mode = (stat.S_IMODE(status.st_mode) if mode is None else mode) & 0o777
        return info

    def _add(self, info: tarfile.TarInfo, file: Data | None = None) -> None:
        self.packed.count(len(info.name) + len(info.linkname), len(info.name) - len(self.prefix), info.size)
        self.tar.addfile(info, file)
        self.tar.members.clear()  # type: ignore[attr-defined]  # tarfile remembers each otherwise
