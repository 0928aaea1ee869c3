"""Write a backup while servers use the state.

The database is copied as of one instant, with the flags of that instant. The keys are copied after it, so every row
finds its key. Servers wait for microseconds. With workspaces no server may run: a file could be half written.
"""

import contextlib
import gzip
import hashlib
import io
import os
import stat
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import msgspec

from toolgate.server.base.progress import TerminalProgress
from toolgate.server.base.version import VERSION
from toolgate.server.state.backup.manifest import (
    ARCHIVE_FOLDER,
    ARCHIVE_SUFFIX,
    DATABASE,
    FOLDERS,
    FORMAT,
    MANIFEST,
    NODE_NAME,
    BackupError,
    BackupFile,
    Manifest,
    list_names,
)
from toolgate.server.state.backup.state_transfer import ExportedState, StateSnapshot, StateTransfer
from toolgate.server.workspaces.archive import pack_folder
from toolgate.tools.workspace.output.run_output import FULL

LEVEL = 1  # of compression: most of the data is compressed already, or small
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def write_backup(
    state: Path,
    transfer: StateTransfer,
    snapshots: Iterable[StateSnapshot],
    raw: IO[bytes],
    temp: Path,
    *,
    workspaces: bool,
    progress: TerminalProgress,
) -> Manifest:
    """Write a backup of `state` to `raw`, and return its manifest. `transfer` copies its database; `snapshots` are of
    files that change meanwhile; `temp` is a folder for temporary files.

    Raises BackupError, StateError, OSError and TimeoutError.
    """
    with (
        gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=LEVEL) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        return _BackupWriter(state, transfer, snapshots, tar, temp, progress).write(workspaces=workspaces)


class _BackupWriter:
    """Adds the parts of `state` to `tar`, and notes each file for the manifest."""

    def __init__(
        self,
        state: Path,
        transfer: StateTransfer,
        snapshots: Iterable[StateSnapshot],
        tar: tarfile.TarFile,
        scratch: Path,
        progress: TerminalProgress,
    ) -> None:
        self.state = state
        self.transfer = transfer
        self.snapshots = snapshots
        self.tar = tar
        self.room = scratch
        self.progress = progress
        self.now = int(time.time())
        self.files: dict[str, BackupFile] = {}
        self.missing: dict[str, str] = {}
        self.omitted: dict[str, str] = {}

    def write(self, *, workspaces: bool) -> Manifest:
        exported = self._add_database()
        for name in exported.flags if exported is not None else ():
            self._add_entry(f"flags/{name}", io.BytesIO(), 0)
        with contextlib.suppress(FileNotFoundError):  # no node's state
            self._add_file(NODE_NAME, self.state / NODE_NAME)
        for name, key in exported.keys.items() if exported is not None else ():
            self._add_entry(f"keys/{name}", io.BytesIO(key), len(key))
        self._add_folder("keys")
        for snapshot in self.snapshots:
            self._add_snapshot(snapshot)
        self._add_folder("uses")
        if workspaces:
            self._add_folder(ARCHIVE_FOLDER)
            for folder in FOLDERS:
                self._add_archives(folder)
        if not self.files:
            raise BackupError(f"{self.state} has nothing to back up: --state names another folder")
        written_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.now))
        files, missing, omitted = dict(self.files), dict(self.missing), dict(self.omitted)
        schema = None if exported is None else exported.schema
        manifest = Manifest(FORMAT, VERSION, written_at, schema, workspaces, files, missing, omitted)
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        self._add_entry(MANIFEST, io.BytesIO(text), len(text))
        return manifest

    def _add_database(self) -> ExportedState | None:
        """Return what belongs to the database, or None if there is none."""
        with self.progress.show("the database"):
            exported = self.transfer.export_database(self.room)
            if exported is not None:
                self._add_file(DATABASE, self.room / DATABASE)
                (self.room / DATABASE).unlink()
        return exported

    def _add_snapshot(self, snapshot: StateSnapshot) -> None:
        with self.progress.show(snapshot.title), snapshot.open() as files:
            for name, file, size in files:
                self._add_entry(name, file, size)

    def _add_folder(self, name: str) -> None:
        for file in list_names(self.state / name):
            if f"{name}/{file}" in self.files:  # a key of the database
                continue
            with contextlib.suppress(FileNotFoundError):  # a flag or a use that ended meanwhile
                self._add_file(f"{name}/{file}", self.state / name / file)

    def _add_archives(self, name: str) -> None:
        """Add each folder in `name` as an archive."""
        folders = list_names(self.state / name, stat.S_IFDIR)
        with self.progress.show(name) as at:
            for number, folder in enumerate(folders, 1):
                at(number, len(folders))
                self._add_archive(f"{name}/{folder}")

    def _add_archive(self, folder: str) -> None:
        archive = self.room / f"folder{ARCHIVE_SUFFIX}"
        try:
            packed = pack_folder(self.state / folder, archive)
        except OSError as error:
            if error.errno in FULL:
                raise
            self.missing[folder] = str(error)  # one folder must not keep the others out
        else:
            self._add_file(f"{folder}{ARCHIVE_SUFFIX}", archive)
            if packed.omission:
                self.omitted[folder] = packed.omission
        archive.unlink(missing_ok=True)

    def _add_file(self, name: str, path: Path) -> None:
        with open(os.open(path, READ), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BackupError(f"{path} is not a file")
            self._add_entry(name, file, status.st_size, int(status.st_mtime))

    def _add_entry(self, name: str, file: IO[bytes], size: int, changed: int | None = None) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = size, 0o600, self.now if changed is None else max(0, changed)
        reading = _HashingReader(file)
        self.tar.addfile(info, reading)
        self.tar.members.clear()  # type: ignore[attr-defined]  # tarfile remembers each entry otherwise
        self.files[name] = BackupFile(size, reading.digest.hexdigest())


class _HashingReader(io.RawIOBase):
    """A file that is read once, and the digest of what was read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        return data
