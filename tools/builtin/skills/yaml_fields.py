"""Read the fields of YAML front matter, also of a text that is nearly YAML.

People write values as plain text that YAML reads otherwise: `a: b`, `[x] y`, `@name`, `*.ts`. Other programs take
them, so a front matter that is no YAML is read once more with those values in quotes.
"""

import re
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from yaml import SafeLoader

MAX_LINES = 400  # of front matter that is read a second time: each may be tried by itself, which takes 0.1 ms
MAX_BRACKETS = 100  # open brackets: thousands keep YAML busy for a second

# A line that means the same with and without YAML: a plain scalar, whole on its line, that starts with a letter and is
# no YAML keyword. YAML reads all others; its import takes 40 ms.
PLAIN = r"([a-z][a-z-]{0,40}): +([^\W\d_].*)"
SPECIAL = r"(?i).*(?:: | #).*|.*:|yes|no|true|false|on|off|null"

KEY = r"([A-Za-z_][\w.-]*)[ \t]*:(.*)"  # a field that begins at the start of a line, and its value there
INNER = (
    r"([ \t]+(?:- +)*|(?:- +)+)(?:([\w.-]+):(?:[ \t]+|\Z))?(.*)"  # a line below a field: its indentation, key and value
)
BLOCK = r"[|>][-+1-9]*"  # what stands for a value of whole lines below it
ANCHOR = "&\\w"

CORE = {  # plain word → its value, and the first characters of such words; any other is a string
    "null": ("~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": ("true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": ("[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
}


class SkillError(ValueError):
    """A SKILL.md that can't be used. The text says why."""


def parse_plain(front: str) -> dict[str, Any] | None:
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


def parse_yaml(front: str, *, core: bool = False) -> dict[Any, Any]:
    """Return the fields as YAML reads them, if need be with plain values in quotes. Raises SkillError.

    `core`: by YAML 1.2; PyYAML reads 1.1, where `on` is a boolean.
    """
    try:
        return _load(front, core=core)
    except SkillError as error:
        quoted = _quote_values(front)
        if quoted == front:
            raise
        try:
            return _load(quoted, core=core)
        except SkillError:
            raise error from None


def _load(front: str, *, core: bool = False) -> dict[Any, Any]:
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
        raise SkillError(f"its front matter is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(fields, dict):
        raise SkillError("its front matter is not a list of fields")
    return fields


def _quote_values(front: str) -> str:
    """Return the text with those values in quotes that are not YAML by themselves."""
    if front.count("\n") > MAX_LINES:
        return front
    import textwrap  # start-up

    fields: list[list[str]] = []  # the lines of each
    for line in textwrap.dedent(front).split("\n"):
        if not fields or re.match(KEY, line):
            fields.append([])
        fields[-1].append(line)
    return "\n".join(_quote_field(lines) for lines in fields)


def _quote_field(lines: list[str]) -> str:
    text = "\n".join(lines)
    found = re.fullmatch(KEY, lines[0])
    if found is None or _is_yaml(text) or re.match(ANCHOR, found[2].strip()):
        return text
    key, value = found[1], found[2].strip()
    if re.fullmatch(BLOCK, value):
        return f"{key}: {_quote(' '.join(line.strip() for line in lines[1:]))}"
    if not value:
        return "\n".join([lines[0], *map(_quote_line, lines[1:])])
    return f"{key}: {_quote(' '.join([value, *(line.strip() for line in lines[1:])]).strip())}"


def _quote_line(line: str) -> str:
    """Return a line below a field with its value in quotes, if it needs them."""
    found = re.fullmatch(INNER, line)
    if found is None:
        return line
    start, key, value = found[1].replace("\t", "  "), found[2], found[3].strip()
    lead = f"{start}{key}: " if key else start
    return lead + (value if not value or _is_yaml(f"key: {value}") else _quote(value))


def _is_yaml(text: str) -> bool:
    try:
        _load(text)
    except SkillError:
        return False
    return True


def _quote(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    return msgspec.json.encode(value).decode()  # YAML reads JSON's strings


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
