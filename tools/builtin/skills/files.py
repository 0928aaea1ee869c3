"""Find the files of a skill, and build its entry for the skills extension.

They are the regular files below its folder that are not hidden, within the limits. Links are not followed.
Source: SEP-2640; agentskills.io/specification.
"""

import hashlib
import os
import threading
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.text import uri_templates
from toolgate.tools.builtin.skills import frontmatter
from toolgate.tools.builtin.skills.frontmatter import RACY_NS, FileStamp
from toolgate.tools.builtin.skills.yaml_fields import SkillError
from toolgate.tools.workspace.files import access as files

MAX_FILES = 512  # of a skill (SEP-2640, "Limits"); the rest is left out
MAX_BYTES = 16 * 2**20  # of all files together (the same)
MAX_DEPTH = 4  # folders below the skill's
MAX_SCANNED = 5_000  # entries looked at for that
MAX_CACHED_SKILLS = 1_000  # skills whose digests are remembered

MANIFEST = "SKILL.md"
ROOT = "skill://"


class SkillFile(msgspec.Struct, frozen=True):
    path: str  # relative to the skill's folder
    stamp: FileStamp


class SkillResource(msgspec.Struct, frozen=True):
    """A file as the extension lists it, with the digest and size of its bytes."""

    uri: str
    digest: str
    size: int


class SkillEntry(msgspec.Struct, frozen=True):
    """A skill as the extension lists it."""

    uri: str
    frontmatter: dict[str, Any]
    resources: list[SkillResource]


class _FileDigest(msgspec.Struct, frozen=True):
    """The cached digest of a file with this stamp; `fields` are for a SKILL.md only."""

    stamp: FileStamp
    digest: str
    size: int
    fields: dict[str, Any] | None = None


class SkillEntries:
    """The entries of skills. A file is read again only when its stamp changes."""

    def __init__(self) -> None:
        self._digests: dict[str, dict[str, _FileDigest]] = {}  # skill's folder → path in it → digest
        self._lock = threading.Lock()  # concurrent calls hash a file once

    def read_entry(self, name: str, folder: Path) -> SkillEntry:
        """Return the entry of the skill `name` in `folder`, reading changed files; blocks. Raises SkillError for a
        skill that became unusable."""
        with self._lock:
            settled = time.time_ns() - RACY_NS
            held = self._digests.pop(str(folder), {})
            found = self._files(folder, held)
            self._digests[str(folder)] = {path: read for path, read in found.items() if read.stamp[2] < settled}
            while len(self._digests) > MAX_CACHED_SKILLS:
                del self._digests[next(iter(self._digests))]
        manifest = found.get(MANIFEST)
        if manifest is None or manifest.fields is None:
            raise SkillError(f"skill {name!r} has just changed")
        if name not in (folder.name, frontmatter.choose_name(manifest.fields, folder.name)):
            raise SkillError(f"skill {name!r} has just changed")
        listed = [SkillResource(uri_of(name, path), read.digest, read.size) for path, read in found.items()]
        return SkillEntry(uri_of(name, MANIFEST), {**manifest.fields, "name": name}, listed)

    def _files(self, folder: Path, held: dict[str, _FileDigest]) -> dict[str, _FileDigest]:
        found: dict[str, _FileDigest] = {}
        for file in files_of(folder):
            before = held.get(file.path)
            if before is not None and before.stamp == file.stamp:
                found[file.path] = before
                continue
            try:
                data = files.read_below(folder, file.path, MAX_BYTES)
            except ToolError:  # gone or not readable: leave it out
                continue
            fields = frontmatter.read_fields(data) if file.path == MANIFEST else None
            found[file.path] = _FileDigest(file.stamp, f"sha256:{hashlib.sha256(data).hexdigest()}", len(data), fields)
        return found


def files_of(folder: Path) -> list[SkillFile]:
    """Return the files of the skill in `folder`: its SKILL.md, then the others, sorted. Blocks."""
    found: list[SkillFile] = []
    waiting = [("", 0)]
    seen = 0
    while waiting and seen < MAX_SCANNED:
        inner, depth = waiting.pop()
        for entry in _entries(folder / inner):
            seen += 1
            path = f"{inner}{entry.name}"
            if entry.name[0] == "." or entry.name == "__pycache__" or uri_templates.encode_path(entry.name) is None:
                continue
            if entry.is_dir(follow_symlinks=False) and depth < MAX_DEPTH:
                waiting.append((f"{path}/", depth + 1))
            elif (stamp := frontmatter.file_stamp(Path(entry))) is not None:
                found.append(SkillFile(path, stamp))
    return _within_limits(sorted(found, key=lambda file: (file.path != MANIFEST, file.path)))


def children(folder: Path, inner: str) -> tuple[list[str], list[SkillFile]] | None:
    """Return the folders and files in the folder `inner` ("": the skill's own), None if there is none."""
    below = [file for file in files_of(folder) if file.path.startswith(inner and f"{inner}/")]
    if not below:
        return None
    cut = len(inner and f"{inner}/")
    folders = sorted({file.path[cut:].partition("/")[0] for file in below if "/" in file.path[cut:]})
    return folders, [file for file in below if "/" not in file.path[cut:]]


def uri_of(name: str, path: str) -> str:
    return f"{ROOT}{quote(name, safe='')}/{uri_templates.encode_path(path)}"


def _within_limits(found: Sequence[SkillFile]) -> list[SkillFile]:
    kept: list[SkillFile] = []
    room = MAX_BYTES
    for file in found:
        if len(kept) < MAX_FILES and file.stamp[0] <= room:
            kept.append(file)
            room -= file.stamp[0]
    return kept


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(islice(entries, MAX_SCANNED))
    except OSError:
        return []
