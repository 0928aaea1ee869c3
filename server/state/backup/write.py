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
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from toolgate.server import VERSION
from toolgate.server.base.progress import TerminalProgress
from toolgate.server.state.backup.manifest import (
    ARCHIVE_FOLDER,
    ARCHIVE_SUFFIX,
    DATABASE,
    FOLDERS,
    FORMAT,
    MANIFEST,
    NAME,
    NODE_NAME,
    BackupError,
    BackupFile,
    Manifest,
)
from toolgate.server.state.database_url import DatabaseUrl
from toolgate.server.state.rows import sessions
from toolgate.server.state.sqlite import snapshot
from toolgate.server.telemetry.audit.log import HEAD_FILE
from toolgate.server.telemetry.audit.reader import AuditSnapshot
from toolgate.server.workspaces.archive import pack_folder
from toolgate.tools.workspace.output.run_output import FULL

LEVEL = 1  # of compression: most of the data is compressed already, or small
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def write_backup(
    state: Path,
    database: DatabaseUrl | None,
    secret: bytes | None,
    raw: IO[bytes],
    temp: Path,
    *,
    workspaces: bool,
    progress: TerminalProgress,
) -> Manifest:
    """Write a backup of `state` and `database` to `raw`, and return its manifest. `secret` opens the keys in the
    database; `temp` is a folder for temporary files.

    Raises BackupError, StateError, OSError and TimeoutError.
    """
    with (
        gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=LEVEL) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        return _BackupWriter(state, database, secret, tar, temp, progress).write(workspaces=workspaces)


class _BackupWriter:
    """Adds the parts of `state` to `tar`, and notes each file for the manifest."""

    def __init__(
        self,
        state: Path,
        database: DatabaseUrl | None,
        secret: bytes | None,
        tar: tarfile.TarFile,
        scratch: Path,
        progress: TerminalProgress,
    ) -> None:
        self.state = state
        self.database = database
        self.secret = secret
        self.keys: dict[str, bytes] = {}  # from the database
        self.tar = tar
        self.room = scratch
        self.progress = progress
        self.now = int(time.time())
        self.files: dict[str, BackupFile] = {}
        self.missing: dict[str, str] = {}
        self.omitted: dict[str, str] = {}

    def write(self, *, workspaces: bool) -> Manifest:
        schema, flags = self._add_database()
        for name in flags:
            self._add_entry(f"flags/{name}", io.BytesIO(), 0)
        with contextlib.suppress(FileNotFoundError):  # no node's state
            self._add_file(NODE_NAME, self.state / NODE_NAME)
        for name, key in self.keys.items():
            self._add_entry(f"keys/{name}", io.BytesIO(key), len(key))
        self._add_folder("keys")
        self._add_audit_log()
        self._add_folder("uses")
        if workspaces:
            self._add_folder(ARCHIVE_FOLDER)
            for folder in FOLDERS:
                self._add_archives(folder)
        if not self.files:
            raise BackupError(f"{self.state} has nothing to back up: --state names another folder")
        written_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.now))
        files, missing, omitted = dict(self.files), dict(self.missing), dict(self.omitted)
        manifest = Manifest(FORMAT, VERSION, written_at, schema, workspaces, files, missing, omitted)
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        self._add_entry(MANIFEST, io.BytesIO(text), len(text))
        return manifest

    def _add_database(self) -> tuple[int | None, list[str]]:
        """Return the version of the tables, and the flags of the same instant."""
        path, copy = self.state / DATABASE, self.room / DATABASE
        if self.database is None and not path.exists():
            return None, []
        with self.progress.show("the database"):
            if self.database is not None:
                from toolgate.server.state.backup import transfer  # start-up

                exported = transfer.export_rows(self.database, self.secret, self.room)
                schema, flags, self.keys = exported.schema, exported.flags, exported.keys
            else:
                schema, flags = snapshot.copy_with(path, copy, lambda: _list_names(self.state / "flags"))
                sessions.remove_sessions(copy)
            self._add_file(DATABASE, copy)
        copy.unlink()
        return schema, flags

    def _add_audit_log(self) -> None:
        """Add the audit log as it was between two writes, however many follow."""
        if not (self.state / "audit").is_dir():
            return
        with self.progress.show("the audit log"), contextlib.closing(AuditSnapshot(self.state / "audit")) as audit:
            for name, file, size in audit.files:
                self._add_entry(f"audit/{name}", file, size)
            if audit.head:
                self._add_entry(f"audit/{HEAD_FILE}", io.BytesIO(audit.head), len(audit.head))

    def _add_folder(self, name: str) -> None:
        for file in _list_names(self.state / name):
            if f"{name}/{file}" in self.files:  # a key of the database
                continue
            with contextlib.suppress(FileNotFoundError):  # a flag or a use that ended meanwhile
                self._add_file(f"{name}/{file}", self.state / name / file)

    def _add_archives(self, name: str) -> None:
        """Add each folder in `name` as an archive."""
        folders = _list_names(self.state / name, stat.S_IFDIR)
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


def _list_names(folder: Path, kind: int = stat.S_IFREG) -> list[str]:
    """Return the names in `folder` that belong in a backup: others are drafts and locks."""
    return sorted(_scan_names(folder, kind))


def _scan_names(folder: Path, kind: int) -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if NAME.fullmatch(entry.name) and stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode) == kind:
                yield entry.name
