"""Unpack an archive that server/workspaces/archive.py wrote. All functions block.

No archive is trusted: nothing is written outside the folder, and the limits of packing hold.
"""

import os
import tarfile
import zlib
from pathlib import Path
from typing import IO, NoReturn

from toolgate.server.workspaces import folder_names, sparse_files
from toolgate.server.workspaces.archive import CREATE_FLAGS, ArchiveError, ArchiveTotals
from toolgate.server.workspaces.folder_names import FolderName
from toolgate.tools.workspace.files.safe_walk import FOLDER

# What reading an archive may raise
DAMAGED = (tarfile.TarError, zlib.error, EOFError, ValueError, LookupError, OverflowError, RecursionError)
LONGER = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)

CHUNK = 1 << 16
NEVER = "it contains an entry that is never packed"


class ArchiveEntry(tarfile.TarInfo):
    """An entry with a limit on its headers, which are read into memory."""

    MAX_HEADER = 16 * 2**20  # bytes of an extended header: the longest possible path is shorter
    stored_size: int | None = None  # bytes in the archive of a file with holes

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in LONGER and not 0 <= self.size <= self.MAX_HEADER:
            raise ArchiveError("a header in it is too long")
        if self.type == tarfile.GNUTYPE_SPARSE:
            self._refuse_sparse()
        return super()._proc_member(tar)  # type: ignore[misc,no-any-return]  # not public, and the only way

    def _refuse_sparse(self, *_: object) -> NoReturn:
        """Refuse a map of holes that tarfile would read into memory without a limit."""
        raise ArchiveError(NEVER)

    _proc_gnusparse_00 = _proc_gnusparse_01 = _refuse_sparse  # two of the forms of a PAX header

    def _proc_gnusparse_10(self, entry: "ArchiveEntry", pax: dict[str, str], _tar: tarfile.TarFile) -> None:
        """Read the third form: a list in front of the data, which is read with it."""
        if "size" in pax:  # the size would be used to find the next header
            self._refuse_sparse()
        entry.stored_size = entry.size


def unpack_archive(archive: Path, folder: Path, *, files_only: bool = False) -> None:
    """Unpack into the new `folder`, which no other process may use meanwhile.

    `files_only`: skip all but files and folders, for a folder that the server reads. Folders get u+rwx, and no file is
    set-uid. Raises OSError; `folder` may be incomplete then.
    """
    folder.mkdir(mode=0o700)
    try:
        with tarfile.open(archive, mode="r|gz", tarinfo=ArchiveEntry) as tar:
            _Unpacker(tar, folder, files_only=files_only).unpack()
    except DAMAGED as error:
        raise ArchiveError(f"{archive.name} is damaged: {error}") from None


class _Unpacker:
    """Unpacks entries in their order, folder by folder, with one folder open at a time."""

    def __init__(self, tar: tarfile.TarFile, root: Path, *, files_only: bool) -> None:
        self.tar = tar
        self.root = root
        self.files_only = files_only
        self.folders = folder_names.UnpackedFolders()
        self.folder: FolderName | None = None  # the open one, None for the root
        self.way: list[str] = []  # the names of the folders down to it
        self.here = -1
        self.packed = ArchiveTotals()

    def unpack(self) -> None:
        self.here = os.open(self.root, FOLDER)
        try:
            for entry in self.tar:
                assert isinstance(entry, ArchiveEntry)
                self._add(entry)
                self.tar.members.clear()  # type: ignore[attr-defined]  # tarfile remembers each otherwise
        finally:
            os.close(self.here)

    def _add(self, entry: ArchiveEntry) -> None:
        parent, name = self._parts(entry.name)
        self._count(entry)
        folder = self.folders.find(parent, entry, folder_names.IN_FOLDER)
        if self.files_only and not (entry.isreg() or entry.isdir()):
            return
        self._go_to(folder)
        mode = entry.mode & 0o777
        if entry.isdir():
            self.packed.count_names(self.folders.add(folder, name, entry))
            os.mkdir(name, mode | 0o700, dir_fd=self.here)
        elif entry.issym():
            os.symlink(entry.linkname, name, dir_fd=self.here)
        elif entry.isfifo():
            os.mkfifo(name, mode, dir_fd=self.here)
        elif entry.islnk():
            self._link(entry, folder, name)
        elif entry.isreg():
            self._file(entry, name, mode)
        else:
            raise ArchiveError(NEVER)

    def _count(self, entry: ArchiveEntry) -> None:
        if entry.issparse() or entry.size < 0:  # with holes, a few bytes could become a file of any length
            raise ArchiveError(NEVER)
        size = entry.size if entry.stored_size is None else entry.stored_size
        name = entry.name.rstrip("/")
        self.packed.count(len(entry.name) + len(entry.linkname), len(name) - name.rfind("/") - 1, size)

    def _file(self, entry: ArchiveEntry, name: str, mode: int) -> None:
        size, stored = entry.size, entry.stored_size
        if stored is not None:
            entry.size = stored  # the bytes that may be read
        source = self.tar.extractfile(entry)
        assert source is not None  # a regular file has one
        pieces = [(0, size)] if stored is None else sparse_files.parse_map(source, stored, size)
        with open(os.open(name, CREATE_FLAGS, mode, dir_fd=self.here), "wb") as file:
            for begin, length in pieces:
                file.seek(begin)
                _copy(source, file, length)
            file.truncate(size)
            os.utime(file.fileno(), (entry.mtime, entry.mtime))

    def _link(self, entry: ArchiveEntry, folder: FolderName, name: str) -> None:
        target, first = self._parts(entry.linkname)
        self._go_to(self.folders.find(target, entry, folder_names.TARGET_FOLDER))
        source = os.dup(self.here)
        try:
            self._go_to(folder)
            os.link(first, name, src_dir_fd=source, dst_dir_fd=self.here, follow_symlinks=False)
        finally:
            os.close(source)

    @staticmethod
    def _parts(path: str) -> tuple[str, str]:
        """Return the folder, with a slash at the end, and the name in it."""
        parent, slash, name = path.rstrip("/").rpartition("/")
        if not name or {"", ".", ".."} & set(path.rstrip("/").split("/")):
            raise ArchiveError("a name in it leads out of the folder")
        return parent + slash, name

    def _go_to(self, folder: FolderName) -> None:
        if folder is self.folder:
            return
        names = folder.names
        common = next((at for at, pair in enumerate(zip(names, self.way, strict=False)) if pair[0] != pair[1]), None)
        common = min(len(names), len(self.way)) if common is None else common
        self.packed.count_steps(len(self.way) + len(names) - 2 * common)
        for name in (*[".."] * (len(self.way) - common), *names[common:]):
            self._go(name)
        self.folder, self.way = folder, names

    def _go(self, name: str) -> None:
        there = os.open(name, FOLDER, dir_fd=self.here)
        os.close(self.here)
        self.here = there


def _copy(source: IO[bytes], file: IO[bytes], length: int) -> None:
    while length and (chunk := source.read(min(length, CHUNK))):
        if chunk.count(0) == len(chunk):  # zeros become a hole, which takes no room on the disk
            file.seek(len(chunk), os.SEEK_CUR)
        else:
            file.write(chunk)
        length -= len(chunk)
