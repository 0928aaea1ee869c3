"""Read a SKILL.md: YAML front matter with a name and a description, then the instructions (agentskills.io).

The text is foreign: it may come with a cloned project. So reads are bounded, links are not followed, and every fault is
a SkillError. Where other programs are lenient, this is: the folder's name and the first paragraph stand in for a name
and a description that are missing or do not fit.
"""

import os
import re
import stat
from pathlib import Path
from typing import Any

import msgspec

from toolgate.tools.builtin.skills.yaml_fields import SkillError, parse_plain, parse_yaml

MAX_FILE = 256 * 1024  # bytes: all of it goes into a model's context
MAX_FRONT = 16 * 1024  # characters of front matter
MAX_DESCRIPTION = 1024  # characters kept (agentskills.io/specification)

NAME = r"(?!.{65})[a-z0-9]+(?:-[a-z0-9]+)*"  # agentskills.io/specification, "name"
PARTS = r"(?sm)---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)(.*)"  # compiled when it is needed: start-up
NO_PROSE = r"\s*(?:#|<!--|```|~~~|---|!\[|\[!\[)"  # how a line begins that describes nothing
RULES = 2  # raised when the same SKILL.md is read differently: the cache has heads of older releases

RACY_NS = 50_000_000  # ns: a file changed this recently may change again under the same stamp, as in git's index

FileStamp = tuple[int, int, int]  # size, mtime and ctime, both in ns


class SkillHead(msgspec.Struct, frozen=True):
    """The front matter of a SKILL.md with this `stamp`, or why it is unusable; and whether that took YAML."""

    stamp: FileStamp
    name: str = ""
    description: str = ""  # on one line
    broken: str = ""
    yaml: bool = False
    rules: int = 1  # RULES when it was read


def file_stamp(path: Path) -> FileStamp | None:
    """Return the file's stamp, which changes with it, or None if it is no regular file."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return to_stamp(found) if stat.S_ISREG(found.st_mode) else None


def to_stamp(found: os.stat_result) -> FileStamp:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


class SkillParts(msgspec.Struct, frozen=True):
    """The parts of a SKILL.md."""

    front: str
    body: str


def read_head(path: Path, found: FileStamp) -> SkillHead:
    """Return the front matter of the file that had the stamp `found`. A broken one is reported in it, not raised."""
    needs_yaml = True
    try:
        data, found = _read(path)
        text = split_parts(data)
        needs_yaml = parse_plain(text.front) is None
        fields = parse_fields(text.front)
        name, description = choose_name(fields, path.parent.name), _describe(fields, text.body)
    except SkillError as error:
        return SkillHead(found, broken=str(error), yaml=needs_yaml, rules=RULES)
    return SkillHead(found, name, description, yaml=needs_yaml, rules=RULES)


def read_fields(data: bytes) -> dict[str, Any]:
    """Return all front matter fields of these bytes as JSON values, with a description. Raises SkillError."""
    text = split_parts(data)
    fields = parse_fields(text.front, core=True)
    try:
        values = msgspec.json.decode(msgspec.json.encode(fields), type=dict[str, Any])
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        raise SkillError("its front matter has what JSON can't hold") from None
    has_description = isinstance(values.get("description"), str) and values["description"].strip()
    return values if has_description else {**values, "description": _describe(values, text.body)}


def parse_fields(front: str, *, core: bool = False) -> dict[Any, Any]:
    """Return the fields of front matter, `core` by YAML 1.2. Raises SkillError."""
    plain = parse_plain(front)
    return parse_yaml(front, core=core) if plain is None else plain


def read_parts(path: Path) -> SkillParts:
    """Return the front matter and the instructions. Raises SkillError."""
    return split_parts(_read(path)[0])


def _read(path: Path) -> tuple[bytes, FileStamp]:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # no link, no pipe to wait on
        with os.fdopen(file, "rb") as stream:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise SkillError("SKILL.md is not a file")
            data = stream.read(MAX_FILE + 1)
    except OSError as error:
        raise SkillError(f"SKILL.md can't be read: {error.strerror}") from None
    return data, to_stamp(found)


def split_parts(data: bytes) -> SkillParts:
    """Return the parts of these bytes. Front matter may be missing. Raises SkillError."""
    text = _decode(data).lstrip("\n")
    found = re.match(PARTS, text)
    if found is None and re.match(r"---[ \t]*\n", text):
        raise SkillError("its front matter has no second line of ---")
    if found is None:
        return SkillParts("", text.strip())
    if len(found[1]) > MAX_FRONT:
        raise SkillError(f"its front matter is longer than {MAX_FRONT} characters")
    return SkillParts(found[1], found[2].strip())


def _decode(data: bytes) -> str:
    if len(data) > MAX_FILE:
        raise SkillError(f"SKILL.md is larger than {MAX_FILE} bytes")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise SkillError("SKILL.md is not UTF-8") from None


def choose_name(fields: dict[Any, Any], folder: str) -> str:
    """Return the name in the front matter, or the folder's if that does not fit. Raises SkillError."""
    name = fields.get("name")
    if isinstance(name, str) and re.fullmatch(NAME, name):
        return name
    if folder and folder.isprintable() and "\\" not in folder:
        return folder
    raise SkillError("its name must be 1 to 64 of a-z, 0-9 and single hyphens, and its folder's name is none either")


def _describe(fields: dict[Any, Any], body: str) -> str:
    """Return the description, or the first paragraph of the instructions, on one line. Raises SkillError."""
    description = _flatten(fields.get("description")) or _find_paragraph(body)
    shown = "".join(character if character.isprintable() else " " for character in description)
    shown = " ".join(shown.split())[:MAX_DESCRIPTION]
    if not shown:
        raise SkillError("it has neither a description nor instructions")
    return shown


def _flatten(value: object) -> str:
    """Return a field's value as text."""
    match value:
        case None:
            return ""
        case str():
            return value.strip()
        case list():
            return ", ".join(filter(None, map(_flatten, value)))
        case dict():
            return ", ".join(f"{key}: {_flatten(inner)}" for key, inner in value.items())
        case _:
            return str(value)


def _find_paragraph(body: str) -> str:
    """Return the first paragraph that is no heading, else the first heading."""
    paragraphs = re.split(r"\n\s*\n", body)
    for paragraph in paragraphs:
        prose = [line for line in paragraph.split("\n") if not re.match(NO_PROSE, line)]
        if any(map(str.strip, prose)):
            return " ".join(prose)
    return paragraphs[0].strip("#-`~<!> \n")
