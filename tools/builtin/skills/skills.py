"""InvokeSkill: find skills in their folders, and give a model the instructions of one.

A skill is a folder with a SKILL.md (tools/builtin/skills/frontmatter.py) and any other files.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from toolgate.tools.api.content import Output, Text
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import ToolError, WrongArgumentsError
from toolgate.tools.api.regular_file import read_regular, remove_entry
from toolgate.tools.api.text.cleaning import refuse_control_characters
from toolgate.tools.api.text.json_text import JsonError, decode_json
from toolgate.tools.api.tool import tool
from toolgate.tools.builtin.skills import frontmatter
from toolgate.tools.builtin.skills.absence import explain_absence, fold_name
from toolgate.tools.builtin.skills.files import MANIFEST, files_of
from toolgate.tools.builtin.skills.frontmatter import RACY_NS, SkillHead
from toolgate.tools.builtin.skills.substitution import declares_arguments, fill_placeholders, read_arguments
from toolgate.tools.builtin.skills.yaml_fields import SkillError

BUILT_IN = Path(__file__).parents[2] / "skills_builtin"

MAX_DESCRIPTION_BYTES = 1_000  # bytes of the tool's description with the catalogue: the contract's 1 kB
MAX_SKILLS = 1_000  # in a folder: each costs a stat, 10 µs, per reading of the catalogue
MAX_CACHED = 1_000  # of all projects that share the cache
MAX_LISTED_FILES = 100  # files beside a SKILL.md that the result names
MAX_ARGUMENTS = 20_000  # characters

FolderStamp = tuple[int, int] | None  # inode and mtime in ns; None: no folder

log = logging.getLogger(__name__)


class Skill(msgspec.Struct, frozen=True):
    name: str
    description: str  # on one line
    folder: Path


class Listing(msgspec.Struct, frozen=True):
    """The skills by name, and the stamps that their folders had before they were read."""

    skills: Mapping[str, Skill]
    stamps: Sequence[FolderStamp]


class Skills:
    """The skills in `folders`, searched in order; the first of a name wins. It always reflects the folders' current
    state. While the folders are watched (`is_watched`), finding a skill reads no other.

    `cache` is a file for results of YAML parsing, for a faster next start; only the server may write it. A folder may
    be a link, as people make for their own; a SKILL.md and the files beside it may not.
    """

    def __init__(self, folders: Sequence[Path], cache: Path | None = None) -> None:
        self.folders = [folder.absolute() for folder in folders]
        self.cache = cache
        self._cached_heads: dict[str, SkillHead] | None = None  # as in the file
        self._heads: dict[str, SkillHead] = {}  # by the path of the SKILL.md
        self._warned: set[str] = set()  # in the log
        self._lock = threading.Lock()  # used by the loop, by calls and by the watch
        self.is_watched = False  # each change of the folders is followed by `catalogue`
        self._listing: Listing | None = None  # None also if a folder changed just before it was read
        self.last_described: dict[str, str] | None = None  # name → description, from the last `describe`

    def catalogue(self) -> Mapping[str, Skill]:
        """The skills by name, sorted. It reads changed files; the others cost a stat each."""
        with self._lock:
            settled = time.time_ns() - RACY_NS
            stamps = [_stamp_folder(folder) for folder in self.folders]
            heads = {str(path): self._read_head(path, stamp) for path, stamp in self._files()}
            found: dict[str, Skill] = {}
            for place in dict.fromkeys(self.folders):
                _add_skills(found, {path: head for path, head in heads.items() if Path(path).parents[1] == place})
            self._heads = {path: head for path, head in heads.items() if head.stamp[2] < settled}
            self._write_cache()
            skills = dict(sorted(found.items()))
            is_settled = all(stamp is None or stamp[1] < settled for stamp in stamps)
            self._listing = Listing(skills, stamps) if is_settled else None
        return skills

    def find(self, name: str) -> Skill | None:
        """Return the skill of that name. While the folders are watched, this costs a stat of its SKILL.md and one of
        each of `folders`; otherwise, and for an unknown name, it costs as much as `catalogue`."""
        listing = self._listing if self.is_watched else None
        skill = None if listing is None else listing.skills.get(name)
        if skill is None or listing is None or not self._is_unchanged(skill, listing):
            return self.catalogue().get(name)
        return skill

    def find_alike(self, name: str) -> Skill | None:
        """Return the only skill whose name or folder is spelled nearly so, or None, as for a path."""
        folded = "" if {"/", "\\"} & set(name) else fold_name(name)
        alike = [each for each in self.catalogue().values() if folded in map(fold_name, (each.name, each.folder.name))]
        return alike[0] if len(alike) == 1 and folded else None

    def explain_absence(self, name: str) -> str:
        """Return why there is no skill `name`, or "" if nothing of that name is in the folders; blocks."""
        return explain_absence(name, [_folders_in(folder) for folder in self.folders])

    def _is_unchanged(self, skill: Skill, listing: Listing) -> bool:
        path = skill.folder / MANIFEST
        head = self._heads.get(str(path))
        if head is None or head.stamp != frontmatter.file_stamp(path):
            return False
        return all(_stamp_folder(folder) == stamp for folder, stamp in zip(self.folders, listing.stamps, strict=True))

    def describe(self, budget: int) -> str:
        """Return the catalogue, one `- name: description` per line, shortened and then cut to `budget` bytes."""
        held = list(self.catalogue().values())
        self.last_described = {skill.name: skill.description for skill in held}
        for width in (1024, 240, 160, 120, 80, 60, 40, 20):
            lines = [f"- {skill.name}: {_shorten(skill.description, width)}" for skill in held]
            if _size(lines) <= budget:
                return "\n".join(lines)
        for count in range(len(held), -1, -1):
            lines = [f"- {skill.name}" for skill in held[:count]]
            if count < len(held):
                lines.append(f"- … and {len(held) - count} more")
            if _size(lines) <= budget:
                return "\n".join(lines)
        return ""

    def watch_roots(self) -> list[Path]:
        """Return the folders whose entries decide the catalogue, or their nearest existing parents, to watch without
        their subfolders. Built-in folders are left out: they never change."""
        roots: set[Path] = set()
        for folder in self.folders:
            if folder != BUILT_IN:
                roots.add(next(parent for parent in folder.parents if parent.is_dir()))
                roots.update([folder, *_folders_in(folder)[:MAX_SKILLS]] if folder.is_dir() else [])
        return sorted(roots)

    def _files(self) -> Iterator[tuple[Path, frontmatter.FileStamp]]:
        for folder in self.folders:
            inner_folders = _folders_in(folder)
            if len(inner_folders) > MAX_SKILLS:
                rest = len(inner_folders) - MAX_SKILLS
                self._warn_once(f"{rest} skills in {folder} are left out: the first {MAX_SKILLS} by name are read")
            for inner in inner_folders[:MAX_SKILLS]:
                path = inner / "SKILL.md"
                stamp = frontmatter.file_stamp(path)
                if stamp is not None:
                    yield path, stamp
                elif os.path.lexists(path):
                    self._warn_once(f"skill {inner} is left out: its SKILL.md is a link, or not a file")

    def _warn_once(self, line: str) -> None:
        if line not in self._warned:
            self._warned.add(line)
            log.warning("%s", line)

    def _read_head(self, path: Path, stamp: frontmatter.FileStamp) -> SkillHead:
        held = self._heads.get(str(path))
        if held is not None and held.stamp == stamp:
            return held
        head = self._read_cache().get(str(path))
        if head is None or head.stamp != stamp or head.rules != frontmatter.RULES:
            head = frontmatter.read_head(path, stamp)
        if head.broken:
            log.warning("skill %s is left out: %s", path.parent, head.broken)
        return head

    def _read_cache(self) -> Mapping[str, SkillHead]:
        if self._cached_heads is None:
            self._cached_heads = {}
            if self.cache is not None:
                try:
                    self._cached_heads = decode_json(read_regular(self.cache), dict[str, SkillHead])
                except FileNotFoundError:
                    log.debug("no cache of skills yet")
                except (OSError, JsonError) as error:
                    log.warning("%s is damaged, and is made again: %s", self.cache, error)
        return self._cached_heads

    def _write_cache(self) -> None:
        held = {path: head for path, head in self._heads.items() if head.yaml}
        if self.cache is None or not held or held.items() <= self._read_cache().items():
            return
        every = {**self._read_cache(), **held}
        self._cached_heads = dict(list(every.items())[-MAX_CACHED:])
        draft = self.cache.with_name(f".{self.cache.name}-{os.getpid()}")
        try:
            self.cache.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.write_bytes(msgspec.json.encode(self._cached_heads))
            if self.cache.is_dir():
                remove_entry(self.cache)
            draft.replace(self.cache)
        except OSError as error:
            log.debug("the cache of skills can't be written: %s", error)


class SkillInvocation(msgspec.Struct, frozen=True):
    name: str
    path: str
    files: list[str]  # the first MAX_TOLD_FILES
    body: str  # with the arguments filled in


@tool(
    name="InvokeSkill",
    title="Invoke skill",
    read_only=True,
    open_world=False,
    output=SkillInvocation,
    scope="tools:workflow",
    in_plan=True,
    lean=True,
)
async def invoke_skill(
    skill_name: Annotated[str, "a name from the list"],
    ctx: Context,
    arguments: Annotated[str, "what the skill is to work on"] = "",
) -> Output:
    """Get the instructions of a skill, for a task that one of these fits; then follow them.

    Returns the instructions with the arguments filled in, the skill's folder, and the files in it.
    """
    text, shown = await asyncio.to_thread(_load_instructions, ctx.service(Skills), skill_name, arguments)
    return Output([Text(text)], shown)


def tool_description(skills: Skills) -> str:
    """Return the tool's description with the catalogue in it, in at most MAX_DESCRIPTION_BYTES bytes."""
    start = f"{invoke_skill.description}\n"
    return start + skills.describe(MAX_DESCRIPTION_BYTES - len(start.encode()))


def instructions(skills: Skills, name: str, arguments: str) -> str:
    """Return what the skill `name` says to do with `arguments`; blocks. Raises ToolError."""
    return _load_instructions(skills, name, arguments)[0]


def _load_instructions(skills: Skills, name: str, arguments: str) -> tuple[str, SkillInvocation]:
    if len(arguments) > MAX_ARGUMENTS:
        raise WrongArgumentsError(f"arguments has {len(arguments)} characters, at most {MAX_ARGUMENTS} are allowed")
    refuse_control_characters(skill_name=name, arguments=arguments)
    skill = skills.find(name) or skills.find_alike(name.removeprefix("/").rpartition(":")[2])
    if skill is None:
        raise ToolError(_describe_absence(skills, name))
    try:
        parts = frontmatter.read_parts(skill.folder / MANIFEST)
    except SkillError as error:
        raise ToolError(f"skill {name!r} has just become unusable: {error}") from None
    files = [file.path for file in files_of(skill.folder) if file.path != MANIFEST][:MAX_LISTED_FILES]
    text = _fill_body(parts, arguments, skill.folder)
    return f"{text}\n\n{_describe_folder(skill, files)}", SkillInvocation(skill.name, str(skill.folder), files, text)


def _describe_absence(skills: Skills, name: str) -> str:
    known = _shorten(", ".join(skills.catalogue()), 2_000) or "none"
    shown = repr(_shorten(name, 100))
    if {"/", "\\"} & set(name):
        return f"{shown} is a path, not the name of a skill; skills are: {known}"
    reason = _shorten(skills.explain_absence(name), 1_000)
    return f"{shown} is not a skill{reason and f': {reason}'}; skills are: {known}"


def _fill_body(parts: frontmatter.SkillParts, arguments: str, folder: Path) -> str:
    """Return the instructions with their placeholders filled in."""
    is_declared = declares_arguments(parts.front)
    fields = frontmatter.parse_fields(parts.front) if is_declared else {}
    return fill_placeholders(
        parts.body, read_arguments(arguments, fields.get("arguments")), folder, in_code=is_declared
    )


def _describe_folder(skill: Skill, files: Sequence[str]) -> str:
    if not files:
        return f"Skill folder: {skill.folder}"
    rest = " (the first of them)" if len(files) == MAX_LISTED_FILES else ""
    return "\n".join([f"Skill folder: {skill.folder}", f"Files in it{rest}:", *(f"- {file}" for file in files)])


def _add_skills(found: dict[str, Skill], heads: Mapping[str, SkillHead]) -> None:
    """Add the skills of one place, by the path of their SKILL.md. Those whose folder has their name come first; a copy
    that kept the name of another one beside it goes by its folder's."""
    usable = {Path(path).parent: head for path, head in heads.items() if not head.broken}
    for folder, head in sorted(usable.items(), key=lambda item: item[0].name != item[1].name):
        is_copy = head.name in found and found[head.name].folder.parent == folder.parent
        name = folder.name if is_copy else head.name
        if name not in found:
            found[name] = Skill(name, head.description, folder)


def _stamp_folder(folder: Path) -> FolderStamp:
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _folders_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.name[0] != "." and os.path.isdir(entry.path))
    except OSError:
        return []
    return [folder / name for name in names]


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1].rstrip()}…"


def _size(lines: Sequence[str]) -> int:
    return len("\n".join(lines).encode())
