"""Print help and the version."""

import pkgutil
from collections.abc import Iterable, Sequence

from click import HelpFormatter

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import suggest
from toolgate.server.base.version import VERSION
from toolgate.server.cli.parsing.command import SPAWNING, Command, usage
from toolgate.server.cli.parsing.commands import COMMANDS, GROUPS, INSTEAD_OF, OVERVIEW, sub_commands
from toolgate.server.config.option import CONFIG, Option
from toolgate.server.config.options import OPTION_GROUPS, OPTIONS

MAX_WIDTH = 100  # characters of a line
INTRODUCTION = "Give any MCP client thirteen tools: over stdio, or with -t over HTTP."
COMMON_OPTIONS = {  # options of the overview → their short help
    "http": "serve Streamable HTTP at /mcp",
    "sse": "serve HTTP+SSE (2024-11-05) at /sse",
    "host": "address to listen on (default 127.0.0.1)",
    "port": "port to listen on (default 8080)",
    "public-url": "the https URL that clients use",
    "sandbox": "how commands are isolated: bwrap, uid, none or auto",
    "plugins": "folder of plugins",
    "state": "folder for keys, database and spools",
}
VARIABLES = """\
Each option is also an environment variable, TOOLGATE_NAME for --name, and a key of the config file. Flags beat the
environment, and the environment beats the file."""


def show_version() -> int:
    """Print the version."""
    print(f"toolgate {VERSION}")
    return 0


def show_help(*, commands: Sequence[str]) -> int:
    """Print the help of a command, of a group of commands, or of all. Raises UsageError."""
    name = " ".join(commands)
    formatter = HelpFormatter(max_width=MAX_WIDTH)
    if not name:
        _write_overview(formatter)
    elif name in GROUPS:
        formatter.write_usage("toolgate", f"{name} COMMAND")
        _write_text(formatter, _to_sentence(GROUPS[name]))
        _write_commands(formatter, [f"{name} {word}" for word in sub_commands(name)])
    elif name in COMMANDS:
        _write_command(formatter, COMMANDS[name])
    else:
        instead = INSTEAD_OF.get(commands[0])
        hint = f": {instead}" if instead else f"{suggest(name, (*COMMANDS, *GROUPS))}; see toolgate --help"
        raise UsageError(f"help: unknown command {name!r}{hint}")
    print(formatter.getvalue(), end="")
    return 0


def _write_overview(formatter: HelpFormatter) -> None:
    formatter.write_usage("toolgate", "[OPTIONS] | COMMAND …")
    formatter.write_text(INTRODUCTION)
    with formatter.section("Commands"):
        formatter.write_dl([*OVERVIEW.items()])
    _write_common(formatter, "Options", OPTIONS)
    formatter.write_text("All options: toolgate serve --help. One command: toolgate COMMAND --help.")


def _write_command(formatter: HelpFormatter, command: Command) -> None:
    formatter.write_usage("toolgate", usage(command).partition(" ")[2])
    _write_text(formatter, _to_sentence(command.summary))
    if command.example:
        with formatter.section("Example"):
            formatter.write_text(command.example)
    if command.choices:
        with formatter.section(f"{command.usage.strip('[]')} is one of"):
            formatter.write_dl([(name, each.title) for name, each in pkgutil.resolve_name(command.choices).items()])
    if names := [f"{command.name} {word}" for word in sub_commands(command.name)]:
        _write_commands(formatter, names)
    _write_section(formatter, "Flags", command.flags)
    if command.name != "serve" and set(SPAWNING) <= set(command.options):
        _write_common(formatter, "Options of the server", command.options)
        _write_text(formatter, "toolgate serve --help explains all of them.")
    else:
        _write_options(formatter, command)


def _write_common(formatter: HelpFormatter, title: str, options: Sequence[Option]) -> None:
    """Write the common options among `options`, each on one line."""
    rows = {option.name: option.spelling for option in options}
    with formatter.section(title):
        formatter.write_dl([(rows[name], text) for name, text in COMMON_OPTIONS.items() if name in rows])


def _write_options(formatter: HelpFormatter, command: Command) -> None:
    for title, group in OPTION_GROUPS.items():
        _write_section(formatter, title, [option for option in group if option in command.options])
    if command.options:
        _write_section(formatter, "Configuration", [CONFIG])
        _write_text(formatter, VARIABLES)


def _write_commands(formatter: HelpFormatter, names: Iterable[str]) -> None:
    """Write a command with its summary, a group with its subject, and either with its own commands."""
    rows = []
    for name in names:
        words = ", ".join(sub_commands(name))
        if name in GROUPS:
            rows.append((name, f"{GROUPS[name]}: {words}"))
        else:
            rows.append((name, f"{COMMANDS[name].summary}; also {words}" if words else COMMANDS[name].summary))
    with formatter.section("Commands"):
        formatter.write_dl(rows)


def _write_section(formatter: HelpFormatter, title: str, options: Sequence[Option]) -> None:
    if rows := [(option.spelling, option.full_help) for option in options if not option.is_planned]:
        with formatter.section(title):
            formatter.write_dl(rows)


def _to_sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _write_text(formatter: HelpFormatter, text: str) -> None:
    formatter.write_paragraph()
    formatter.write_text(text)
