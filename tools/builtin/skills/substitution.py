"""Fill in the placeholders of a skill's instructions, as Claude Code does.

`$ARGUMENTS` is all arguments, `$ARGUMENTS[0]` and `$0` the first as a shell splits them, `$name` one that the front
matter names, and `${CLAUDE_SKILL_DIR}` the skill's folder. Code has `$1` of its own, so there `$0` and `$name` stand
for arguments only if the front matter tells of them. Source: code.claude.com/docs/en/skills.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

MAX_NAMES = 20  # arguments with a name

PLACEHOLDER = (  # all arguments, or one by its number; one by its number; one by its name; the folder
    r"\$ARGUMENTS(?:\[(\d{{1,3}})\])?|\$(\d{{1,2}})(?!\w|[.,]\d)|\$({names})(?![\w-])|(\$\{{CLAUDE_SKILL_DIR\}})"
)
DECLARED = r"(?m)^(?:argument-hint|arguments)[ \t]*:"  # the fields that tell of arguments
CODE = r"(?ms)^[ \t]*(```|~~~).*?(?:^[ \t]*\1|\Z)|`[^`\n]+`"
NAME = r"[A-Za-z_][\w-]*"


class Arguments(NamedTuple):
    """What a skill is invoked with: the whole text, its words, and the words that have names."""

    text: str
    words: Sequence[str]
    named: Mapping[str, str]


def read_arguments(text: str, declared: object) -> Arguments:
    """Return the arguments. `declared` is the field `arguments` of the front matter: names, as a list or in a text."""
    import shlex  # start-up

    try:
        words = shlex.split(text)
    except ValueError:  # a quote without its end
        words = text.split()
    names = declared.split() if isinstance(declared, str) else declared if isinstance(declared, list) else []
    names = [name for name in names[:MAX_NAMES] if isinstance(name, str) and re.fullmatch(NAME, name)]
    return Arguments(text, words, dict(zip(names, [*words, *[""] * len(names)], strict=False)))


def declares_arguments(front: str) -> bool:
    """Return whether the front matter tells of arguments."""
    return re.search(DECLARED, front) is not None


def fill_placeholders(body: str, arguments: Arguments, folder: Path, *, in_code: bool) -> str:
    """Return the instructions with all placeholders filled in. Arguments without one are appended.

    `in_code`: `$0` and names in code are placeholders, too.
    """
    pattern = re.compile(PLACEHOLDER.format(names="|".join(map(re.escape, arguments.named)) or "(?!)"))
    code = [] if in_code else [edge for found in re.finditer(CODE, body) for edge in found.span()]
    is_used = False

    def fill(found: "re.Match[str]") -> str:
        nonlocal is_used
        if found[4]:
            return str(folder)
        is_short = found[2] is not None or found[3] is not None
        if is_short and bisect_right(code, found.start()) % 2:
            return found[0]
        value = _find_value(found, arguments)
        is_used = is_used or value is not None
        return found[0] if value is None else value

    text = pattern.sub(fill, body)
    return text if is_used or not arguments.text else f"{text}\n\nARGUMENTS: {arguments.text}"


def _find_value(found: "re.Match[str]", arguments: Arguments) -> str | None:
    """Return what a placeholder stands for, or None if it is none."""
    indexed, short, name = found[1], found[2], found[3]
    if name is not None:
        return arguments.named[name]
    if short is not None:
        return arguments.words[int(short)] if int(short) < len(arguments.words) else None
    if indexed is not None:
        return arguments.words[int(indexed)] if int(indexed) < len(arguments.words) else ""
    return arguments.text
