"""Describe a backup: a compressed tar of regular files with fixed names, and the manifest as its last file.

    state.db                    the database
    node.name                   the name of a node, by which servers know where workspaces are
    keys/NAME, flags/NAME, audit/NAME, uses/NAME
    archive/NAME                archived workspaces
    workspaces/NAME.tar.gz      a principal's folder, as server/workspaces/archive.py packs it
    spool/NAME.tar.gz, leaving/NAME.tar.gz
    manifest.json               when it was made, and the digest of each file

People choose the names in their folders, so each folder is an archive of its own. A backup with any other name, or with
anything but regular files, is refused.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

DATABASE, MANIFEST = "state.db", "manifest.json"
NODE_NAME = "node.name"
FILES = ("keys", "flags", "audit", "uses")  # folders of files, in every backup
ARCHIVE_FOLDER = "archive"  # a folder of files, in a backup with workspaces
FOLDERS = ("workspaces", "spool", "leaving")  # folders of principals' folders, in a backup with workspaces
ARCHIVE_SUFFIX = ".tar.gz"
FORMAT = 1

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")  # so short that it needs no extended tar header
MEMBER = re.compile(
    rf"state\.db|manifest\.json|node\.name|(?:{'|'.join((*FILES, ARCHIVE_FOLDER))})/{NAME.pattern}"
    rf"|(?:{'|'.join(FOLDERS)})/{NAME.pattern}\.tar\.gz"
)
MAX_FILES = 200_000
MAX_BYTES = 256 * 2**30  # of all files together; the room on the disk is checked as well
MAX_MANIFEST = 64 * 2**20


class BackupError(Exception):
    """The backup can't be written, read or restored; the text says why."""


class BackupFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The size of a file in bytes, and its SHA-256 in hex."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What a backup contains.

    made: when it was written, in UTC
    schema: the version of the database's tables; None without a database
    workspaces: whether it includes principals' folders
    missing: the folders that could not be packed, each with the reason
    omitted: the folders that are incomplete, each with what is not in the archive
    """

    format: int
    toolgate: str
    made: str
    schema: int | None
    workspaces: bool
    files: dict[str, BackupFile]
    missing: dict[str, str] = {}
    omitted: dict[str, str] = {}


def parse_manifest(text: bytes) -> Manifest:
    """Return the manifest. Raises BackupError."""
    try:
        raw: Any = msgspec.json.decode(text)
        if isinstance(raw, dict) and raw.get("format") != FORMAT:
            raise BackupError("the backup has an unknown format: restore it with the Toolgate version that wrote it")
        return msgspec.convert(raw, Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BackupError("the manifest of the backup is damaged") from None


def list_names(folder: Path, kind: int = stat.S_IFREG) -> list[str]:
    """Return the names in `folder` that belong in a backup: others are drafts and locks."""
    return sorted(_scan_names(folder, kind))


def _scan_names(folder: Path, kind: int) -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if NAME.fullmatch(entry.name) and stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode) == kind:
                yield entry.name
