"""Make mounts of the servers in a client's file, and say what their person has to know."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from toolgate.server.features.mounts.config import secret_references
from toolgate.server.features.mounts.config.imports.foreign_server import ForeignServer
from toolgate.server.features.mounts.config.imports.naming import choose_mount_names
from toolgate.server.features.mounts.config.imports.placeholders import convert_placeholders
from toolgate.server.features.mounts.config.imports.shapes import SHAPES
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.config.table import SSE, read_mount
from toolgate.tools.api.installation import COMMANDS

LATER = ("CONFIG_VARIABLE_NOT_SET", "CONFIG_PLACEHOLDER")  # faults that end when their person has set something
KINDS = {"stdio": "", "local": "", "http": "", "streamablehttp": "", "remote": "", "sse": SSE}  # as we write them
RUNNERS = ("uvx", "uv", "pipx")
ORDER = ("command", "args", "cwd", "env", "url", "type", "headers", "tools", "timeout")  # of keys
PATH_START = re.compile(r"/|~|[A-Za-z]:")  # a folder's name may have blanks
INPUT = re.compile(r"\$\{input:([^}]*)\}")


class ImportedMount(msgspec.Struct, frozen=True):
    """A mount to write, the server's name in the client, and what is to be known of it."""

    name: str
    rows: Mapping[str, Any]
    origin: str
    notes: tuple[str, ...] = ()


class ImportPlan(msgspec.Struct, frozen=True):
    """The mounts to write, and a line for each server that is none."""

    mounts: tuple[ImportedMount, ...] = ()
    left_out: tuple[str, ...] = ()


def plan_import(content: Mapping[str, Any], environment: Mapping[str, str]) -> ImportPlan:
    """Return the mounts in the content of a client's file. `environment` is the person's own, to check variables."""
    usable: list[tuple[ForeignServer, Mapping[str, Any]]] = []
    left_out: list[str] = []
    for server in (server for find_servers in SHAPES.values() for server in find_servers(content)):
        rows = _make_rows(server, environment)
        reason = _find_refusal(server, rows, environment)
        if reason:
            left_out.append(f"{_describe(server)}: {reason}")
        elif not any(other.name == server.name and rows == known for other, known in usable):  # of two projects
            usable.append((server, rows))
    names = choose_mount_names([server.name for server, _ in usable])
    mounts = [
        ImportedMount(name, rows, _describe(server), tuple(_list_notes(name, server, rows, environment)))
        for name, (server, rows) in zip(names, usable, strict=True)
    ]
    return ImportPlan(tuple(mounts), tuple(left_out))


def _describe(server: ForeignServer) -> str:
    return f"{server.name} in {server.project}" if server.project else server.name


def _find_refusal(server: ForeignServer, rows: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """Return why the server can't be mounted, or ""."""
    if server.is_disabled:
        return "it is disabled there"
    if _is_toolgate(rows):
        return "it is this program"
    texts = [text for code, text in _find_faults("a", rows, environment) if code not in LATER]
    return "; ".join(texts)


def _is_toolgate(rows: Mapping[str, Any]) -> bool:
    """Return whether the server is one of ours, also where a runner of packages starts it."""
    program = PurePath(str(rows.get("command"))).name
    return program in COMMANDS or (program in RUNNERS and any(name in rows.get("args", ()) for name in COMMANDS))


def _list_notes(
    name: str, server: ForeignServer, rows: Mapping[str, Any], environment: Mapping[str, str]
) -> Iterator[str]:
    if server.skipped:
        yield f"skipped: {', '.join(server.skipped)}"
    for _, text in _find_faults(name, rows, environment):
        found = INPUT.search(text)
        about = server.inputs.get(found[1], "") if found else ""
        yield f"{text} ({about})" if about else text
    for secret in sorted(secret_references.find_names(secret_references.list_texts(rows))):
        about = f" ({server.inputs[secret]})" if server.inputs.get(secret) else ""
        yield f"set its secret: toolgate secret set {secret}{about}"


def _find_faults(name: str, rows: Mapping[str, Any], environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the codes and texts of the faults that a mount of these rows has."""
    found = read_mount(name, rows, "", environment)
    if isinstance(found, MountConfig):
        return []
    return [(fault.code, fault.text.removeprefix(f": [mounts.{name}]").lstrip(": ")) for fault in found]


def _make_rows(server: ForeignServer, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the rows of the mount. Keys whose values have no meaning here are added to those that are skipped."""
    rows = dict(server.rows)
    kind = rows.pop("type", None)
    shown = KINDS.get(re.sub("[^a-z]", "", str(kind or "http").lower()))
    if shown is None:
        server.skipped.append(f"type {kind}")
    elif shown and "url" in rows:
        rows["type"] = shown
    if "command" in rows:
        rows["command"], rows["args"] = _split_command(rows["command"], rows.get("args"))
    for key in ("env", "headers"):
        if isinstance(rows.get(key), dict):
            rows[key] = {name: _to_text(value) for name, value in rows[key].items() if value is not None}
    converted = {key: _convert(key, value, environment) for key, value in rows.items()}
    return {key: converted[key] for key in ORDER if converted.get(key) not in ("", [], {}, None)}


def _split_command(command: Any, args: Any) -> tuple[Any, Sequence[Any]]:
    """Return the program and its arguments, of a list or of a line of words; without `cmd /c`, Windows' shell."""
    words = command if isinstance(command, list) else [command]
    args = [_to_text(each) for each in args] if isinstance(args, list) else []
    if len(words) == 1 and not args and isinstance(words[0], str) and not PATH_START.match(words[0]):
        words = _split_line(words[0])
    words = [*words, *args]
    if [str(word).lower() for word in words[:2]] in (["cmd", "/c"], ["cmd.exe", "/c"]):
        words = words[2:]
    return (words[0], words[1:]) if words else ("", [])


def _split_line(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a quotation mark that is not closed
        return [line]


def _to_text(value: Any) -> Any:
    """Return a number or a truth value as text, as a client passes it to a process."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else value


def _convert(key: str, value: Any, environment: Mapping[str, str]) -> Any:
    """Return the value of a key with our variables in its texts."""
    if isinstance(value, str):
        has_bare, is_hidden = key in ("env", "headers"), key in ("env", "headers", "url")
        return convert_placeholders(value, environment, has_bare=has_bare, is_hidden=is_hidden)
    if isinstance(value, list):
        return [_convert(key, each, environment) for each in value]
    if isinstance(value, dict):
        return {name: _convert(key, each, environment) for name, each in value.items()}
    return value
