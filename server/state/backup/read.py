"""A backup read back into a folder that nobody uses yet. Knows nothing of what becomes of it.

It trusts no archive: other names than `contents` has, links, devices, holes, digests that differ and sizes without end
are refused.
"""

import hashlib
import os
import shutil
import stat
import tarfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from toolgate.server.progress import TerminalProgress
from toolgate.server.state.backup.manifest import (
    ARCHIVE_SUFFIX,
    DATABASE,
    FOLDERS,
    MANIFEST,
    MAX_BYTES,
    MAX_FILES,
    MAX_MANIFEST,
    MEMBER,
    BackupError,
    BackupFile,
    Manifest,
    parse_manifest,
)
from toolgate.server.state.store import VERSION, StateError, check_database
from toolgate.server.workspaces.archive import CREATE_FLAGS, ArchiveError
from toolgate.server.workspaces.unarchive import DAMAGED, ArchiveEntry, unpack_archive

CHUNK = 1 << 20
SPARE_BYTES = 16 * 2**20  # bytes that have to be left on the disk
REQUIRED_FOLDERS = {"leaving": ("workspace", "rest")}  # of a folder there: a link would lead us elsewhere
FILES_ONLY = ("spool",)  # what the server itself reads: a pipe there would hold it up


def extract_backup(raw: IO[bytes], folder: Path, progress: TerminalProgress) -> Manifest:
    """Make `folder`, its owner's alone, of the backup in `raw`, when all of that is as its manifest says. Raises
    Refused and OSError; `folder` may be half full then."""
    folder.mkdir(mode=0o700)
    reading = _BackupReader(folder)
    try:
        with (
            progress.show("reading the backup: files") as at,
            tarfile.open(fileobj=raw, mode="r|gz", tarinfo=BackupEntry) as tar,
        ):
            for entry in tar:
                at(len(reading.files), 0)
                reading.add(tar, entry)
                tar.members.clear()  # type: ignore[attr-defined]  # it would remember each
    except (*DAMAGED, ArchiveError) as error:
        raise BackupError(f"it is damaged, or no backup: {error}") from None
    manifest = reading.read_manifest()
    _check(folder, manifest)
    for name in FOLDERS:
        _unpack(folder / name, progress)
    return manifest


class BackupEntry(ArchiveEntry):
    """No entry of ours needs a header beside its own."""

    MAX_HEADER = 0


class _BackupReader:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, BackupFile] = {}
        self.bytes = 0
        self.manifest: bytes | None = None

    def add(self, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        is_file = entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and entry.size >= 0
        if not is_file or not MEMBER.fullmatch(entry.name):
            raise BackupError(f"{ascii(entry.name)[:200]} in it is nothing that a backup has")
        if entry.name in self.files or self.manifest is not None:
            raise BackupError(f"{entry.name} in it comes twice, or behind its end")
        self.bytes += entry.size
        if len(self.files) >= MAX_FILES or self.bytes > MAX_BYTES:
            raise BackupError(f"there is too much in it: over {MAX_BYTES >> 30} GiB or {MAX_FILES:,} files")
        source = tar.extractfile(entry)
        assert source is not None  # of a regular file
        if entry.name == MANIFEST:
            self.manifest = source.read(MAX_MANIFEST + 1)
        else:
            self.files[entry.name] = self._write_file(entry, source)

    def _write_file(self, entry: tarfile.TarInfo, source: IO[bytes]) -> BackupFile:
        path = self.folder / entry.name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if shutil.disk_usage(self.folder).free < entry.size + SPARE_BYTES:
            raise BackupError(f"there is no room for it: {entry.name} has {entry.size:,} bytes")
        digest = hashlib.sha256()
        with open(os.open(path, CREATE_FLAGS, 0o600), "wb") as file:
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            changed = min(max(0.0, entry.mtime), time.time())  # of a file in uses/ that says when somebody called
            os.utime(file.fileno(), (changed, changed))
        return BackupFile(entry.size, digest.hexdigest())

    def read_manifest(self) -> Manifest:
        if self.manifest is None or len(self.manifest) > MAX_MANIFEST:
            raise BackupError("it is damaged, or no backup: its end is missing")
        manifest = parse_manifest(self.manifest)
        for name in sorted(manifest.files.keys() | self.files.keys()):
            if manifest.files.get(name) != self.files.get(name):
                raise BackupError(f"it is damaged: {ascii(name)[:200]} in it is not what was put there")
        return manifest


def _check(folder: Path, manifest: Manifest) -> None:
    """The database is whole, and of a version that is known here."""
    path = folder / DATABASE
    if not path.exists():
        return
    try:
        version = check_database(path)
    except StateError as error:
        raise BackupError(f"in the backup, {error}") from None
    if version > VERSION:
        raise BackupError(
            f"it is of a newer Toolgate ({ascii(manifest.toolgate)[1:40]}; its database has version {version}, this "
            f"one knows {VERSION}): restore it with that one"
        )
    if version < 1:
        raise BackupError("the database in it was not made by Toolgate")


def _unpack(folder: Path, progress: TerminalProgress) -> None:
    """Folders out of the archives that are there."""
    if not folder.exists():
        return
    found = sorted(folder.iterdir())
    with progress.show(folder.name) as at:
        for number, archive in enumerate(found, 1):
            at(number, len(found))
            made = folder / archive.name.removesuffix(ARCHIVE_SUFFIX)
            try:
                unpack_archive(archive, made, files_only=folder.name in FILES_ONLY)
            except ArchiveError as error:
                raise BackupError(f"{folder.name}/{archive.name} in it can't be unpacked: {error}") from None
            archive.unlink()
            _check_places(made)


def _check_places(made: Path) -> None:
    """What a server takes for a folder of its own is one, where it is there."""
    for name in REQUIRED_FOLDERS.get(made.parent.name, ()):
        with suppress(FileNotFoundError):
            if not stat.S_ISDIR((made / name).lstat().st_mode):
                raise BackupError(f"{made.parent.name}/{made.name}/{name} in it is no folder")
