"""Read a SKILL.md: YAML front matter with a name and a description, then the instructions (agentskills.io).

The text is foreign: it may come with a cloned project. So reads are bounded, links are not followed, and every fault is
a SkillError.
"""

import os
import re
import stat
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from yaml import SafeLoader

MAX_FILE = 256 * 1024  # bytes: all of it goes into a model's context
MAX_FRONT = 16 * 1024  # characters of front matter
MAX_BRACKETS = 100  # open brackets: thousands keep YAML busy for a second
MAX_DESCRIPTION = 1024  # characters kept (agentskills.io/specification)

NAME = r"(?!.{65})[a-z0-9]+(?:-[a-z0-9]+)*"  # agentskills.io/specification, "name"
PARTS = r"(?sm)---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)(.*)"  # compiled when it is needed: start-up

# A line that means the same with and without YAML: a plain scalar, whole on its line, that starts with a letter and is
# no YAML keyword. YAML reads all others; its import takes 40 ms.
PLAIN = r"([a-z][a-z-]{0,40}): +([^\W\d_].*)"
SPECIAL = r"(?i).*(?:: | #).*|.*:|yes|no|true|false|on|off|null"

CORE = {  # plain word → its value, and the first characters of such words; any other is a string
    "null": ("~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": ("true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": ("[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
}

RACY_NS = 50_000_000  # ns: a file changed this recently may change again under the same stamp, as in git's index

FileStamp = tuple[int, int, int]  # size, mtime and ctime, both in ns


class SkillError(ValueError):
    """A SKILL.md that can't be used. The text says why."""


class SkillHead(msgspec.Struct, frozen=True):
    """The front matter of a SKILL.md with this `stamp`, or why it is unusable; and whether that took YAML."""

    stamp: FileStamp
    name: str = ""
    description: str = ""  # on one line
    broken: str = ""
    yaml: bool = False


def file_stamp(path: Path) -> FileStamp | None:
    """Return the file's stamp, which changes with it, or None if it is no regular file."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return to_stamp(found) if stat.S_ISREG(found.st_mode) else None


def to_stamp(found: os.stat_result) -> FileStamp:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_head(path: Path, found: FileStamp) -> SkillHead:
    """Return the front matter of the file that had the stamp `found`. A broken one is reported in it, not raised."""
    try:
        text, found = _read(path)
        front = _split_parts(text)[0]
        plain = _parse_plain(front)
        fields = _parse_yaml(front) if plain is None else plain
    except SkillError as error:
        return SkillHead(found, broken=str(error), yaml=True)
    try:
        return SkillHead(found, _name(fields), _description(fields), yaml=plain is None)
    except SkillError as error:
        return SkillHead(found, broken=str(error), yaml=plain is None)


def read_fields(data: bytes) -> dict[str, Any]:
    """Return all front matter fields of these bytes as JSON values. Raises SkillError."""
    front = _split_parts(_text(data))[0]
    plain = _parse_plain(front)
    found = _parse_yaml(front, core=True) if plain is None else plain
    try:
        return msgspec.json.decode(msgspec.json.encode(found), type=dict[str, Any])
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        raise SkillError("its front matter has what JSON can't hold") from None


def read_body(path: Path) -> str:
    """Return the instructions: the text after the front matter. Raises SkillError."""
    return _split_parts(_read(path)[0])[1].strip()


def _read(path: Path) -> tuple[str, FileStamp]:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # no link, no pipe to wait on
        with os.fdopen(file, "rb") as stream:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise SkillError("SKILL.md is not a file")
            data = stream.read(MAX_FILE + 1)
    except OSError as error:
        raise SkillError(f"SKILL.md can't be read: {error.strerror}") from None
    return _text(data), to_stamp(found)


def _text(data: bytes) -> str:
    if len(data) > MAX_FILE:
        raise SkillError(f"SKILL.md is larger than {MAX_FILE} bytes")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise SkillError("SKILL.md is not UTF-8") from None


def _split_parts(text: str) -> tuple[str, str]:
    found = re.match(PARTS, text)
    if found is None:
        raise SkillError("SKILL.md has no front matter between two lines of ---")
    if len(found[1]) > MAX_FRONT:
        raise SkillError(f"its front matter is longer than {MAX_FRONT} characters")
    return found[1], found[2]


def _parse_plain(front: str) -> dict[str, Any] | None:
    """Return the fields if each line is a plain one, else None."""
    fields: dict[str, Any] = {}
    for line in front.split("\n"):
        if not line:
            continue
        found = re.fullmatch(PLAIN, line)
        if found is None or not line.isprintable() or re.fullmatch(SPECIAL, found[2].rstrip()):
            return None
        fields[found[1]] = found[2].rstrip()
    return fields


def _parse_yaml(front: str, *, core: bool = False) -> dict[Any, Any]:
    """Return the fields as YAML reads them. `core`: by YAML 1.2; PyYAML reads 1.1, where `on` is a boolean."""
    import yaml  # start-up: 40 ms

    if front.count("[") + front.count("{") > MAX_BRACKETS:
        raise SkillError(f"its front matter has more than {MAX_BRACKETS} brackets")
    try:
        if any(isinstance(token, (yaml.AliasToken, yaml.AnchorToken)) for token in yaml.scan(front)):
            raise SkillError("its front matter has YAML anchors or aliases, which may stand for ever more")
        fields = yaml.load(front, _core_loader() if core else yaml.SafeLoader)  # noqa: S506  # both are safe
    except SkillError:
        raise
    except Exception as error:  # noqa: BLE001  # hostile tags can raise nearly any exception
        raise SkillError(f"its front matter is not YAML: {error}") from None
    if not isinstance(fields, dict):
        raise SkillError("its front matter is not a list of fields")
    return fields


@cache
def _core_loader() -> "type[SafeLoader]":
    """Return a loader that reads plain words by the core schema (YAML 1.2.2 section 10.3)."""
    import yaml

    class Core(yaml.SafeLoader):
        pass

    Core.yaml_implicit_resolvers = {}  # its own table: the base class keeps another

    def whole(loader: "SafeLoader", node: Any) -> int:
        word = loader.construct_scalar(node)
        return int(word, 0) if word[:2] in ("0o", "0x") else int(word)

    for kind, (pattern, first) in CORE.items():
        Core.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(rf"(?:{pattern})\Z"), list(first))
    Core.add_constructor("tag:yaml.org,2002:int", whole)
    return Core


def _name(fields: dict[Any, Any]) -> str:
    name = fields.get("name")
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise SkillError("its name must be 1 to 64 of a-z, 0-9 and single hyphens between them")
    return name


def _description(fields: dict[Any, Any]) -> str:
    description = fields.get("description")
    if not isinstance(description, str) or not description.strip():
        raise SkillError("it has no description")
    shown = "".join(character if character.isprintable() else " " for character in description)
    return " ".join(shown.split())[:MAX_DESCRIPTION]
