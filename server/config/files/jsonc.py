"""Edit JSON with comments and trailing commas as text: only the changed member is written, all else stays as it is.

Each edit is parsed again and compared with the intended content, so that a mistake here can't damage a file.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

MAX_DEPTH = 100  # of objects and arrays: clients nest some six
TRIVIA = re.compile(r"(?:[ \t\r\n\ufeff]|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
SAME_LINE = re.compile(r"(?:[ \t]*/\*[^\n]*?\*/)*(?:[ \t]*//[^\r\n]*)?")  # comments behind a member
STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
SCALAR = re.compile(r"-?[0-9][0-9.eE+-]*|true|false|null")
INDENT = re.compile(r"\n([ \t]*)\Z")


class ConfigSyntaxError(Exception):
    """The text can't be read or edited; the message says where and why."""


class JsonNode(msgspec.Struct):
    """A value, its characters [start, end), the members of an object, and whether a comma ends the last one."""

    start: int
    end: int
    value: Any
    members: list["JsonMember"] = msgspec.field(default_factory=list["JsonMember"])


class JsonMember(msgspec.Struct):
    """A member of an object; `comma` is the place of the comma behind it, or -1."""

    key: str
    start: int
    node: JsonNode
    comma: int = -1


def parse_jsonc(text: str) -> Any:
    """Return the value of the text; an empty text is an empty object. Raises ConfigSyntaxError."""
    return _parse(text).value


def set_member(text: str, path: Sequence[str], value: Any) -> str:
    """Return the text with the member at `path` set, in objects that are made if they are missing.

    Raises ConfigSyntaxError if one of them is not an object.
    """
    root = _parse(text)
    if root.end == 0:  # nothing, or comments
        text = f"{text.rstrip()}\n{{}}\n".lstrip()
        root = _parse(text)
    node, at = root, 0
    for at, key in enumerate(path):
        found = _find_member(node, key)
        if found is None:
            break
        node = found.node
        if at < len(path) - 1 and not isinstance(node.value, dict):
            raise ConfigSyntaxError(f"{'.'.join(path[: at + 1])} is not an object")
    else:
        return text if node.value == value else _check(_replace(text, root, node, value), root, path, value)
    made = value
    for key in reversed(path[at + 1 :]):
        made = {key: made}
    return _check(_insert(text, root, node, path[at], made), root, path, value)


def remove_member(text: str, path: Sequence[str]) -> str:
    """Return the text without the member at `path`, or as it is. Raises ConfigSyntaxError."""
    root = node = _parse(text)
    for key in path[:-1]:
        found = _find_member(node, key)
        if found is None:
            return text
        node = found.node
    member = _find_member(node, path[-1])
    return text if member is None else _check(_remove(text, node, member), root, path, None)


def _splice(text: str, start: int, end: int, new: str) -> str:
    return text[:start] + new + text[end:]


def _find_member(node: JsonNode, key: str) -> JsonMember | None:
    found = [member for member in node.members if member.key == key]
    if len(found) > 1:
        raise ConfigSyntaxError(f"{key!r} is there twice")
    return found[0] if found else None


def _check(text: str, before: JsonNode, path: Sequence[str], value: Any) -> str:
    """Return the text if it differs from `before` in the member at `path` only."""
    expected = _with_member(before.value, path, value)
    if _parse(text).value != expected:
        raise ConfigSyntaxError("it can't be edited without changing more than the entry")
    return text


def _with_member(data: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    key, rest = path[0], path[1:]
    others = {name: each for name, each in data.items() if name != key}
    if rest:
        return {**others, key: _with_member(data.get(key, {}), rest, value)}
    return others if value is None else {**others, key: value}


def _replace(text: str, root: JsonNode, node: JsonNode, value: Any) -> str:
    """Return the text with another value for a node: on one line if the old one is."""
    is_short = node.value and "\n" not in text[node.start : node.end]
    new = _format_short(value) if is_short else _format(text, root, _line_indent(text, node.start), value)
    return _splice(text, node.start, node.end, new)


def _insert(text: str, root: JsonNode, node: JsonNode, key: str, value: Any) -> str:
    """Return the text with a new last member of an object."""
    newline = "\r\n" if "\r\n" in text else "\n"
    if not node.members:
        base = _line_indent(text, node.start)
        indent = base + _unit(text, root)
        inner = text[node.start + 1 : node.end - 1].rstrip(" \t\r\n")
        member = _member_text(text, root, key, value, indent)
        return _splice(text, node.start + 1, node.end - 1, f"{inner}{newline}{indent}{member}{newline}{base}")
    last = node.members[-1]
    if "\n" not in text[node.start : node.members[0].start]:
        member = f"{json.dumps(key)}: {_format_short(value)}"
        end = last.node.end if last.comma < 0 else last.comma
        return _splice(text, end, end, f", {member}")
    found = INDENT.search(text, node.start, node.members[0].start)
    indent = found[1] if found else _line_indent(text, node.start) + _unit(text, root)
    member = _member_text(text, root, key, value, indent)
    at = _line_end(text, last)
    if last.comma >= 0:
        return _splice(text, at, at, f"{newline}{indent}{member},")
    return _splice(text, last.node.end, at, f",{text[last.node.end : at]}{newline}{indent}{member}")


def _remove(text: str, node: JsonNode, member: JsonMember) -> str:
    """Return the text without a member and its comments: those before it, and those on its last line."""
    index = node.members.index(member)
    end = member.node.end if member.comma < 0 else member.comma + 1
    if len(node.members) == 1:
        left = text[node.start + 1 : member.start] + text[end : node.end - 1]
        is_empty = not left.strip(" \t\r\n")
        return _splice(text, node.start, node.end, "{}") if is_empty else _splice(text, member.start, end, "")
    start = _line_end(text, node.members[index - 1]) if index > 0 else _comments_end(text, node.start + 1)
    is_last = index == len(node.members) - 1
    line_end = _line_end(text, member)
    if is_last or text[line_end : line_end + 2].startswith(("\n", "\r\n")):
        text = _splice(text, start, end if is_last else line_end, "")
    else:  # the next member is on the same line
        text = _splice(text, member.start, end, "")
    if is_last and member.comma < 0:
        before = node.members[index - 1]
        text = _splice(text, before.comma, before.comma + 1, "")
    return text


def _line_end(text: str, member: JsonMember) -> int:
    """Return the place behind a member, its comma and the comments on the same line."""
    return _comments_end(text, member.node.end if member.comma < 0 else member.comma + 1)


def _comments_end(text: str, at: int) -> int:
    found = SAME_LINE.match(text, at)
    return found.end() if found else at


def _member_text(text: str, root: JsonNode, key: str, value: Any, indent: str) -> str:
    return f"{json.dumps(key, ensure_ascii=False)}: {_format(text, root, indent, value)}"


def _format_short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _format(text: str, root: JsonNode, indent: str, value: Any) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    return json.dumps(value, indent=_unit(text, root), ensure_ascii=False).replace("\n", newline + indent)


def _unit(text: str, root: JsonNode) -> str:
    """Return the indentation of one level."""
    found = INDENT.search(text, root.start, root.members[0].start) if root.members else None
    return (found[1] if found else "") or "  "


def _line_indent(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _parse(text: str) -> JsonNode:
    at = _skip(text, 0)
    if at == len(text):
        return JsonNode(0, 0, {})
    node = _parse_value(text, at, 0)
    if (at := _skip(text, node.end)) < len(text):
        raise _error(text, at, "nothing may follow the value")
    if not isinstance(node.value, dict):
        raise _error(text, node.start, "the file must hold an object")
    return node


def _parse_value(text: str, at: int, depth: int) -> JsonNode:
    if depth > MAX_DEPTH:
        raise _error(text, at, f"more than {MAX_DEPTH} levels")
    match text[at : at + 1]:
        case "{":
            return _parse_object(text, at, depth)
        case "[":
            return _parse_array(text, at, depth)
        case '"':
            end, value = _parse_string(text, at)
            return JsonNode(at, end, value)
        case _:
            found = SCALAR.match(text, at)
            if found is None:
                raise _error(text, at, "a value is missing")
            try:
                return JsonNode(at, found.end(), json.loads(found[0]))
            except ValueError:
                raise _error(text, at, f"{found[0][:20]!r} is not a number") from None


def _parse_object(text: str, start: int, depth: int) -> JsonNode:
    node = JsonNode(start, start, {})
    at = _skip(text, start + 1)
    while text[at : at + 1] != "}":
        if node.members and node.members[-1].comma < 0:
            raise _error(text, at, "a comma or } is missing")
        if text[at : at + 1] != '"':
            raise _error(text, at, "a name in quotes or } is missing")
        key_start = at
        at, key = _parse_string(text, at)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise _error(text, at, "a colon is missing")
        value = _parse_value(text, _skip(text, at + 1), depth + 1)
        member = JsonMember(key, key_start, value)
        node.members.append(member)
        node.value[key] = value.value
        at = _skip(text, value.end)
        if text[at : at + 1] == ",":
            member.comma = at
            at = _skip(text, at + 1)
    node.end = at + 1
    return node


def _parse_array(text: str, start: int, depth: int) -> JsonNode:
    items: list[Any] = []
    at = _skip(text, start + 1)
    has_comma = True
    while text[at : at + 1] != "]":
        if not has_comma:
            raise _error(text, at, "a comma or ] is missing")
        item = _parse_value(text, at, depth + 1)
        items.append(item.value)
        at = _skip(text, item.end)
        if has_comma := text[at : at + 1] == ",":
            at = _skip(text, at + 1)
    return JsonNode(start, at + 1, items)


def _parse_string(text: str, at: int) -> tuple[int, str]:
    found = STRING.match(text, at)
    try:
        if found is not None:
            return found.end(), json.loads(found[0])
    except ValueError:
        pass
    raise _error(text, at, "this string does not end, or holds what a string can't")


def _skip(text: str, at: int) -> int:
    """Return the place behind white space and comments."""
    found = TRIVIA.match(text, at)
    at = found.end() if found else at
    if text.startswith("/*", at):
        raise _error(text, at, "this comment does not end")
    return at


def _error(text: str, at: int, reason: str) -> ConfigSyntaxError:
    line = text.count("\n", 0, at) + 1
    return ConfigSyntaxError(f"line {line}, column {at - text.rfind(chr(10), 0, at)}: {reason}")
