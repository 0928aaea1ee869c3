"""Edit one table of a TOML file as text: its statements are written, all else stays as it is.

Each edit is parsed again and compared with the intended content, so that a mistake here can't damage a file. tomlkit
0.15 is no help: it moves a `[[list]]` that stands between two tables of servers, and refuses some valid files.
"""

import contextlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from toolgate.server.config.files.jsonc import ConfigSyntaxError

Comments = Mapping[str, str]  # key → whole lines before it
NO_COMMENTS: Comments = MappingProxyType({})
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class TomlStatement(msgspec.Struct, frozen=True):
    """The lines of one statement, comment or blank line, the table it begins, and what it sets."""

    text: str
    header: tuple[str, ...]  # () for all but a table's header
    content: dict[str, Any]


def parse_toml(text: str) -> dict[str, Any]:
    """Return the content. Raises ConfigSyntaxError."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigSyntaxError(str(error)) from None
    except RecursionError:
        raise ConfigSyntaxError("too many levels") from None
    except ValueError:  # Python converts no longer number: sys.int_info.default_max_str_digits
        raise ConfigSyntaxError("a number has too many digits") from None


def format_table(path: Sequence[str], entry: Mapping[str, Any], comments: Comments = NO_COMMENTS) -> str:
    """Return a table whose strings and lists are written as in JSON, with a last newline. `comments` are the lines
    before a key."""
    rows = (f"[{'.'.join(path)}]\n", *(_format_item(key, value, comments) for key, value in entry.items()))
    return "".join(rows)


def set_table(
    text: str,
    path: tuple[str, ...],
    entry: Mapping[str, Any],
    removed: Sequence[str] = (),
    comments: Comments = NO_COMMENTS,
) -> str:
    """Return the text with the members of `entry` in the table at `path`, without those in `removed`; others stay.
    `comments` are as in `format_table`.

    Raises ConfigSyntaxError if the table is written in another form than `[a.b]`.
    """
    old = _find_table(parse_toml(text), path)
    merged = {**{key: value for key, value in (old or {}).items() if key not in removed}, **entry}
    newline = "\r\n" if "\r\n" in text else "\n"
    if old is None:
        last = "" if not text or text.endswith("\n") else newline
        gap = newline if text.strip() else ""
        table = format_table(path, entry, comments).replace("\n", newline)
        return _check(f"{text}{last}{gap}{table}", text, path, merged)
    statements = list(_split(text))
    rewritten = [key for key in entry if key in old and entry[key] != old[key] and isinstance(old[key], dict)]
    for key in (*removed, *rewritten):
        statements = _drop_table(statements, (*path, key))
    first, end = _find_lines(statements, path)
    lines: list[str] = []
    for statement in statements[first:end]:
        key = next(iter(statement.content), "")
        if key in removed or key in rewritten:
            lines = [line for line in lines if line != comments.get(key)]
        elif key in entry and entry[key] != old[key]:
            lines.append(f"{key} = {_format_value(entry[key])}{_find_comment(statement.text)}{newline}")
        else:
            lines.append(statement.text)
    added = [key for key in entry if key not in old or key in rewritten]
    new = [_format_item(key, entry[key], comments).replace("\n", newline) for key in added]
    if new and not lines[-1].endswith("\n"):  # the text has no last newline
        lines[-1] += newline
    lines += new
    parts = [*(each.text for each in statements[:first]), *lines, *(each.text for each in statements[end:])]
    return _check("".join(parts), text, path, merged)


def remove_table(text: str, path: tuple[str, ...]) -> str:
    """Return the text without the table at `path` and those below it. Raises ConfigSyntaxError."""
    if _find_table(parse_toml(text), path) is None:
        return text
    return _check("".join(each.text for each in _drop_table(list(_split(text)), path)), text, path, None)


def _drop_table(statements: Sequence[TomlStatement], path: tuple[str, ...]) -> list[TomlStatement]:
    """Return the statements without the table at `path` and those below it."""
    rest: list[TomlStatement] = []
    at = 0
    while at < len(statements):
        if statements[at].header[: len(path)] != path:
            rest.append(statements[at])
            at += 1
            continue
        at = _find_end(statements, at)
        if rest and not rest[-1].text.strip() and all(not each.text.strip() for each in statements[at:]):
            rest.pop()  # the blank line before the last table
        if at < len(statements) and not statements[at].text.strip() and (not rest or not rest[-1].text.strip()):
            at += 1  # the blank line behind a table that had one before it, too, or was the first
    return rest


def _check(text: str, before: str, path: tuple[str, ...], entry: Mapping[str, Any] | None) -> str:
    """Return the text if it differs from `before` in the table at `path` only."""
    try:
        found = parse_toml(text)
    except ConfigSyntaxError:
        found = {}
    if _find_table(found, path) != entry or _without(found, path) != _without(parse_toml(before), path):
        raise ConfigSyntaxError(f"[{'.'.join(path)}] can't be written without changing more than that table")
    return text


def _without(data: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return the data without the table, and without tables that are empty then."""
    if len(path) == 1:
        return {key: value for key, value in data.items() if key != path[0]}
    below = data.get(path[0], {})
    left = _without(below, path[1:]) if isinstance(below, dict) else below
    others = {key: value for key, value in data.items() if key != path[0]}
    return {**others, path[0]: left} if left else others


def _find_table(data: Any, path: tuple[str, ...]) -> dict[str, Any] | None:
    for key in path:
        if not isinstance(data, dict):
            raise ConfigSyntaxError(f"{'.'.join(path[:-1])} is not a table")
        if key not in data:
            return None
        data = data[key]
    if not isinstance(data, dict):
        raise ConfigSyntaxError(f"{'.'.join(path)} is not a table")
    return data


def _find_lines(statements: Sequence[TomlStatement], path: tuple[str, ...]) -> tuple[int, int]:
    """Return the statements [start, end) of a table, its header first."""
    for start, statement in enumerate(statements):
        if statement.header == path:
            return start, _find_end(statements, start)
    raise ConfigSyntaxError(f"{'.'.join(path)} is not written as a table [{'.'.join(path)}]")


def _find_end(statements: Sequence[TomlStatement], start: int) -> int:
    """Return the end of the table that begins at `start`: behind its last statement, so that comments before the next
    table stay there."""
    end = start + 1
    for at in range(start + 1, len(statements)):
        if statements[at].header:
            break
        if statements[at].content:
            end = at + 1
    return end


def _split(text: str) -> Iterator[TomlStatement]:
    """Yield the statements of a valid text. Lines belong together until they are valid alone."""
    waiting = ""
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        waiting += line
        try:
            content = tomllib.loads(waiting)
        except tomllib.TOMLDecodeError:
            continue
        header = tuple(_walk_header(content)) if waiting.lstrip().startswith("[") else ()
        yield TomlStatement(waiting, header, {} if header else content)
        waiting = ""


def _find_comment(text: str) -> str:
    """Return the comment behind the value of a statement, and the space before it."""
    line = text.rstrip("\r\n")
    for place in re.finditer(r"[ \t]*#", line):
        with contextlib.suppress(tomllib.TOMLDecodeError):
            tomllib.loads(line[: place.start()])
            return line[place.start() :]
    return ""


def _walk_header(content: Any) -> Iterator[str]:
    while content:
        if isinstance(content, list):
            content = content[0]
            continue
        ((key, content),) = content.items()
        yield key


def _format_item(key: str, value: Any, comments: Comments) -> str:
    return f"{comments.get(key, '')}{_format_key(key)} = {_format_value(value)}\n"


def _format_key(key: str) -> str:
    return key if BARE_KEY.fullmatch(key) else _format_value(key)


def _format_value(value: Any) -> str:
    """Return a value as TOML has it: as in JSON, but for tables, and for DEL, which JSON does not escape."""
    if isinstance(value, dict):
        items = ", ".join(f"{_format_key(key)} = {_format_value(each)}" for key, each in value.items())
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_format_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
