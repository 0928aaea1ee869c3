"""What is in a backup: a compressed tar of regular files under names of ours, and behind them the manifest.

    state.db                    the database
    keys/NAME, flags/NAME, audit/NAME, uses/NAME
    archive/NAME                workspaces that were archived
    workspaces/NAME.tar.gz      a folder of somebody's, as `cleaning.packing` packs it
    spool/NAME.tar.gz, leaving/NAME.tar.gz
    manifest.json               what was made when, and the digest of each file

What people made is in archives of their own, since they choose its names: an archive that holds any other name, or
anything but files, is none of ours.
"""

import re
from typing import Any

import msgspec

DATABASE, MANIFEST = "state.db", "manifest.json"
FILES = ("keys", "flags", "audit", "uses")  # folders of files, which are always in it
ARCHIVE_FOLDER = "archive"  # a folder of files that is in it with the workspaces
FOLDERS = ("workspaces", "spool", "leaving")  # folders of people's folders, which are in it when that is asked for
ARCHIVE_SUFFIX = ".tar.gz"
FORMAT = 1

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")  # of a file or a folder: such a path needs no longer header
MEMBER = re.compile(
    rf"state\.db|manifest\.json|(?:{'|'.join((*FILES, ARCHIVE_FOLDER))})/{NAME.pattern}"
    rf"|(?:{'|'.join(FOLDERS)})/{NAME.pattern}\.tar\.gz"
)
MAX_FILES = 200_000
MAX_BYTES = 256 * 2**30  # of all files together; what there is room for on the disk is looked at besides
MAX_MANIFEST = 64 * 2**20


class BackupError(Exception):
    """It can't be done; the text says why."""


class BackupFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file: its bytes, and their SHA-256 in hex."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """`made` is when, in UTC; `schema` the version of the database's tables, None where there is none; `workspaces`
    whether people's folders are in it too, but for those `missing`: folder → why it could not be packed. `omitted`:
    folder → what of it is not there."""

    format: int
    toolgate: str
    made: str
    schema: int | None
    workspaces: bool
    files: dict[str, BackupFile]
    missing: dict[str, str] = {}
    omitted: dict[str, str] = {}


def parse_manifest(text: bytes) -> Manifest:
    """Raises Refused."""
    try:
        held: Any = msgspec.json.decode(text)
        if isinstance(held, dict) and held.get("format") != FORMAT:
            raise BackupError("it was made by another Toolgate, in a format that this one does not know")
        return msgspec.convert(held, Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BackupError("its manifest is damaged") from None
