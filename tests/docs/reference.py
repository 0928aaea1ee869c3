"""Generate the parts of docs/ that repeat the code: `make reference` writes them, and a test compares them.

Each part is between `<!-- NAME -->` and `<!-- end -->`.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.agents.matrix import write_table
from tests.architecture import rooms
from tests.clients.raw_client import ROOT
from toolgate.server.app.builtin_tools import TOOLS
from toolgate.server.cli.parsing.command import Command
from toolgate.server.cli.parsing.commands import COMMANDS
from toolgate.server.config.options import OPTIONS, Option
from toolgate.server.features.clients import program, snippets
from toolgate.server.features.clients.clients import CLIENTS
from toolgate.tools.api.schema.schema import NEWS
from toolgate.tools.api.tool import Tool

PART = re.compile(r"(<!-- (?!path|end)([a-z]+(?:: [\w-]+)?) -->\n).*?(<!-- end -->)", re.S)  # paths: `make walk`
DEFAULT = re.compile(r" \(default:? ([^)]+)\)")
DOCTOR = "; toolgate doctor"  # left out: the page says it elsewhere
PUBLIC = "https://tools.example.com"
COMMAND = "/home/ada/toolgate/.venv/bin/toolgate"
CHOICE = re.compile(r"(\w+) \(default\)")
UNITS = {"integer": "integer", "number": "number", "boolean": "true or false", "string": "string"}


def fill_parts(text: str) -> str:
    """Return the page with its parts generated again."""
    return PART.sub(lambda found: f"{found[1]}\n{_part(found[2])}\n\n{found[3]}", text)


def _part(name: str) -> str:
    kind, _, of = name.partition(":")
    return PARTS[kind](of.strip())


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), ["---"] * len(list(head)), *map(list, rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


# -- options


def _options(of: str) -> str:
    wanted = [option for option in OPTIONS if not option.is_planned and option.is_http_only == (of == "http")]
    return _table(("option", "environment", "default", "meaning"), map(_option, wanted))


def _option(option: Option) -> tuple[str, str, str, str]:
    names = ", ".join(f"`{name}`" for name in option.spelling.split(", "))
    default = DEFAULT.search(option.help) or (CHOICE.search(option.help) if option.default == () else None)
    return (
        names,
        f"`{option.variable}`",
        default[1] if default else _value(option.default),
        DEFAULT.sub("", option.full_help),
    )


def _value(default: Any) -> str:
    if default is False:
        return "off"
    return "none" if default in (None, (), "") else f"`{default}`"


# -- commands


def _commands(of: str) -> str:
    return _table(("command", "does"), ((f"`{_call(command)}`", command.summary) for command in COMMANDS.values()))


def _flags(of: str) -> str:
    """Return the table of flags that belong to one command."""
    rows = ((command.name, flag) for command in COMMANDS.values() for flag in command.flags)
    return _table(
        ("command", "flag", "meaning"), ((f"`{name}`", f"`{flag.spelling}`", flag.help) for name, flag in rows)
    )


def _call(command: Command) -> str:
    return " ".join(("toolgate", command.name, *command.arguments))


# -- tools


def _tool(of: str) -> str:
    tool = next(tool for tool in TOOLS if tool.name == of)
    parts = [_quoted(tool.description), _arguments(tool), _results(tool), _hints(tool)]
    return "\n\n".join(filter(None, parts))


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def _arguments(tool: Tool) -> str:
    needed = tool.input.get("required", [])
    rows = [
        (f"`{name}`", _kind(one), _fallback(name, one, needed), str(one.get("description", "")))
        for name, one in tool.input["properties"].items()
    ]
    return _table(("argument", "type", "default", "meaning"), rows) if rows else "It takes no arguments."


def _fallback(name: str, one: dict[str, Any], needed: list[str]) -> str:
    if name in needed:
        return "required"
    return f"`{one['default']}`" if one.get("default") not in (None, "") else "none"


def _kind(one: dict[str, Any]) -> str:
    if "enum" in one:
        return ", ".join(f"`{word}`" for word in one["enum"])
    unit = UNITS[one["type"]]
    low, high = one.get("minimum"), one.get("maximum")
    return f"{unit}, {low} to {high}" if low is not None and high is not None else unit


def _results(tool: Tool) -> str:
    names = ", ".join(f"`{name}`" for name in (tool.output or {}).get("properties", {}) if name != NEWS)
    if not names:
        return "It has no structured result."
    if tool.lean:
        return f"Its result is not structured by default; with `--structured-output full` it also has {names}."
    return f"Its structured result has {names}."


def _hints(tool: Tool) -> str:
    annotations = tool.annotations
    hints = {
        "reads only": annotations.read_only,
        "may destroy": annotations.destructive,
        "may be repeated": annotations.idempotent,
        "reaches outside": annotations.open_world,
    }
    return (
        f"Scope `{tool.scope}`; "
        + ", ".join(f"{hint}: {'yes' if is_so else 'no'}" for hint, is_so in hints.items())
        + "."
    )


# -- rooms


def _rooms() -> str:
    """Return a table of folders and loose files, each with the first sentence of its docstring."""
    loose = [path for path in rooms.sources() if len(path.parts) == 2 and path.name != "__init__.py"]
    rows = [(f"`{path}/`", rooms.describe(path / "__init__.py")) for path in rooms.folders()]
    rows += [(f"`{path}`", rooms.describe(path)) for path in loose]
    return _table(("room", "what it does"), sorted(rows))


# -- clients


def _client(of: str) -> str:
    """Return the output of `toolgate config`, for a server that the client starts and for one at a URL."""
    found = []
    if CLIENTS[of].from_command is not None:
        found.append(("On the same machine", snippets.build_snippet(of, ())))
    found.append(("From elsewhere", snippets.build_snippet(of, (), PUBLIC)))
    return "\n\n".join(
        f"{where}, {each.where.partition(DOCTOR)[0]}:\n\n```{_language(each.text)}\n{each.text}\n```"
        for where, each in found
    ).replace(program.find_program()[0], COMMAND)


def _language(body: str) -> str:
    if body.startswith("{"):
        return "json"
    return "toml" if body.startswith("[") else "sh no-run: it changes the client" if " " in body else "text"


PARTS: dict[str, Callable[[str], str]] = {
    "options": _options,
    "commands": _commands,
    "flags": _flags,
    "tool": _tool,
    "client": _client,
    "agents": lambda _: write_table(),
    "rooms": lambda _: _rooms(),
}


def main() -> None:
    for page in (ROOT / "CONTRIBUTING.md", *sorted(Path(ROOT, "docs").glob("*.md"))):
        text = page.read_text()
        if fill_parts(text) != text:
            page.write_text(fill_parts(text))
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
