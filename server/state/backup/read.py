"""Extract a backup into a new folder and verify it.

No archive is trusted: unknown names, links, devices, holes, wrong digests and excessive sizes are refused.
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

from toolgate.server.base.errors import StateError
from toolgate.server.base.progress import TerminalProgress
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
from toolgate.server.state.sqlite.database import check_database
from toolgate.server.state.tables import OLDEST, VERSION
from toolgate.server.workspaces.archive import CREATE_FLAGS, ArchiveError
from toolgate.server.workspaces.unarchive import DAMAGED, ArchiveEntry, unpack_archive

CHUNK = 1 << 20
SPARE_BYTES = 16 * 2**20  # bytes that have to be left on the disk
REQUIRED_FOLDERS = {"leaving": ("workspace", "rest")}  # of a folder there: a link would lead the server elsewhere
FILES_ONLY = ("spool",)  # folders the server itself reads: a FIFO there would block it


def extract_backup(raw: IO[bytes], folder: Path, progress: TerminalProgress) -> Manifest:
    """Extract the backup in `raw` into the new private `folder`, and return its manifest once every file matches it.

    Raises BackupError and OSError; `folder` may be incomplete then.
    """
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
                tar.members.clear()  # type: ignore[attr-defined]  # tarfile remembers each entry otherwise
    except (*DAMAGED, ArchiveError) as error:
        raise BackupError(f"the file is damaged, or is not a backup: {error}") from None
    manifest = reading.read_manifest()
    _check(folder, manifest)
    for name in FOLDERS:
        _unpack(folder / name, progress)
    return manifest


class BackupEntry(ArchiveEntry):
    """An entry of a backup, which never needs an extended header."""

    MAX_HEADER = 0


class _BackupReader:
    """Writes the entries of a backup to `folder`, and checks them against the manifest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, BackupFile] = {}
        self.bytes = 0
        self.manifest: bytes | None = None

    def add(self, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        is_file = entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and entry.size >= 0
        if not is_file or not MEMBER.fullmatch(entry.name):
            raise BackupError(
                f"the file is not a backup of Toolgate: {ascii(entry.name)[:200]} does not belong in a backup"
            )
        if entry.name in self.files or self.manifest is not None:
            raise BackupError(f"{entry.name} is in the backup twice, or after its manifest")
        self.bytes += entry.size
        if len(self.files) >= MAX_FILES or self.bytes > MAX_BYTES:
            raise BackupError(f"the backup is too large: over {MAX_BYTES >> 30} GiB or {MAX_FILES:,} files")
        source = tar.extractfile(entry)
        assert source is not None  # a regular file has one
        if entry.name == MANIFEST:
            self.manifest = source.read(MAX_MANIFEST + 1)
        else:
            self.files[entry.name] = self._write_file(entry, source)

    def _write_file(self, entry: tarfile.TarInfo, source: IO[bytes]) -> BackupFile:
        path = self.folder / entry.name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if shutil.disk_usage(self.folder).free < entry.size + SPARE_BYTES:
            needed = f"{entry.name}, which has {entry.size:,} bytes, and {SPARE_BYTES >> 20} MiB that stay free"
            raise BackupError(f"the disk has no room for {needed}: free some space")
        digest = hashlib.sha256()
        with open(os.open(path, CREATE_FLAGS, 0o600), "wb") as file:
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            changed = min(max(0.0, entry.mtime), time.time())  # the time of a file in uses/ is that of a call
            os.utime(file.fileno(), (changed, changed))
        return BackupFile(entry.size, digest.hexdigest())

    def read_manifest(self) -> Manifest:
        if self.manifest is None or len(self.manifest) > MAX_MANIFEST:
            raise BackupError("the file is damaged, or is not a backup: its end is missing")
        manifest = parse_manifest(self.manifest)
        for name in sorted(manifest.files.keys() | self.files.keys()):
            if manifest.files.get(name) != self.files.get(name):
                raise BackupError(f"the backup is damaged: {ascii(name)[:200]} differs from its manifest")
        return manifest


def _check(folder: Path, manifest: Manifest) -> None:
    """Raise BackupError unless the database is whole, and of a version that this Toolgate knows."""
    path = folder / DATABASE
    if not path.exists():
        return
    try:
        version, _ = check_database(path)
    except StateError as error:
        raise BackupError(f"in the backup, {error}") from None
    if version > VERSION:
        raise BackupError(
            f"the backup was written by a newer Toolgate ({ascii(manifest.toolgate)[1:-1][:40]}; its database has "
            f"version {version}, this one knows {VERSION}): restore it with that one"
        )
    if version < 1:
        raise BackupError("the database in the backup was not made by Toolgate")
    if version < OLDEST:
        raise BackupError(
            f"the database in the backup has version {version}, and this Toolgate upgrades those from {OLDEST} on: "
            "restore it with a Toolgate between the two, start that once, and make another backup"
        )


def _unpack(folder: Path, progress: TerminalProgress) -> None:
    """Replace each archive in `folder` by the folder that it contains."""
    if not folder.exists():
        return
    archives = sorted(folder.iterdir())
    with progress.show(folder.name) as at:
        for number, archive in enumerate(archives, 1):
            at(number, len(archives))
            target = folder / archive.name.removesuffix(ARCHIVE_SUFFIX)
            try:
                unpack_archive(archive, target, files_only=folder.name in FILES_ONLY)
            except ArchiveError as error:
                raise BackupError(f"{folder.name}/{archive.name} in the backup can't be unpacked: {error}") from None
            archive.unlink()
            _check_places(target)


def _check_places(target: Path) -> None:
    """Raise BackupError where a link or a file stands in for a folder that the server uses."""
    for name in REQUIRED_FOLDERS.get(target.parent.name, ()):
        with suppress(FileNotFoundError):
            if not stat.S_ISDIR((target / name).lstat().st_mode):
                raise BackupError(f"{target.parent.name}/{target.name}/{name} in the backup is not a folder")
