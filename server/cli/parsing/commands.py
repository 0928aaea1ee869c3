"""List the commands: what each does, its arguments, flags and options, and the function that runs it."""

from collections.abc import Sequence
from itertools import chain
from pkgutil import resolve_name

import msgspec

from toolgate.server.base.merged_rows import merge_rows
from toolgate.server.cli.parsing.command import (
    JSON,
    SPAWNING,
    URL,
    Command,
    FeatureCommands,
    pick_options,
)
from toolgate.server.config.feature_rows import FEATURES, ROOM
from toolgate.server.config.option import Option
from toolgate.server.config.options import OPTIONS
from toolgate.server.config.types import parse_bool

DATABASE = pick_options("state", opens=("state",))
KEYS_TOO = pick_options("state", opens=("state", "keys"))
CLIENTS = pick_options("state", "clients", opens=("state",))
ADDRESS = pick_options("host", "port")
CLIENT = Option("client", "id of a client that the server knows, where none can register itself", metavar="ID")
HEALTH_URL = Option("url", "check the server at this URL", metavar="URL")
CONFIDENTIAL = Option("confidential", "give the client a secret, for clients that can keep one", parse_bool)
DROP_OLD = Option("drop-old", "end all access tokens; for when a key may have leaked", parse_bool)
WITH_WORKSPACES = Option("with-workspaces", "include people's workspaces; no server may run", parse_bool)
REPLACE = Option("replace", "move what the backup replaces to STATE/replaced-TIME; the rest stays", parse_bool)
UNDO_RESTORE = Option("undo", "put back what was there before a restore that was interrupted", parse_bool)
OUTPUT = Option("output", "save the image in the answer to this file", metavar="FILE")


_GROUPS = {  # commands of several words
    "user": "accounts of the built-in login",
    "workspace": "people's workspaces",
    "client": "OAuth clients",
    "token": "people's grants to clients",
    "token revoke": "end access",
    "key": "the keys that sign tokens",
}
_INSTEAD = {  # words that people try → what to type
    **dict.fromkeys(("start", "run", "server", "stdio", "http"), "toolgate serve serves, and -t serves over HTTP"),
    **dict.fromkeys(("stop", "restart", "status"), "a service manager stops and starts the server: systemctl"),
    **dict.fromkeys(
        ("update", "upgrade", "self"),
        "upgrade it as it was installed: docs/quickstart-local.md has the command for each way",
    ),
    **dict.fromkeys(("list", "ls"), "toolgate tools lists the tools"),
    **dict.fromkeys(("logs", "log"), "--logs DIR keeps the log of the server; toolgate audit shows its calls"),
    **dict.fromkeys(("check", "test", "diagnose", "info"), "toolgate doctor checks this machine"),
}
_OVERVIEW = {  # first words of all commands → what they do, on one line of 80 columns
    "demo": "take a tour: call every tool on local data",
    "call, tools": "call a tool, list the tools",
    "doctor": "check this machine",
    "serve, health": "serve (also without a command), check that it is ready",
    "login, logout": "sign in to a server at a URL, or end that",
    "user, workspace": "people's accounts and files",
    "client, token, key": "OAuth clients, their grants, the keys that sign tokens",
    "backup, restore": "write the state to a file, or restore it",
}
_LAST_OVERVIEW = {"help, version": "explain a command, print the version"}
_CORE = (
    Command(
        "serve",
        "serve MCP over stdio, or with -t or -s over HTTP (also without a command)",
        "cli.serve:serve",
        OPTIONS,
        example="toolgate -t --auth none",
    ),
    Command(
        "demo",
        "take a tour: call every tool on local data",
        "cli.commands.demo:run_tour",
        SPAWNING,
        example="toolgate demo",
    ),
    Command(
        "call",
        "call one tool and print its content",
        "cli.commands.call:call",
        SPAWNING,
        "TOOL [ARGUMENT=VALUE…]",
        (URL, JSON, OUTPUT),
        lister="toolgate tools",
        example="toolgate call Bash command='echo hello'",
    ),
    Command(
        "tools",
        "list the tools, prompts and resources",
        "cli.commands.call:list_parts",
        SPAWNING,
        "",
        (URL,),
        example="toolgate tools --url http://127.0.0.1:8080/mcp",
    ),
    Command(
        "doctor",
        "check this machine",
        "cli.doctor.main:check",
        OPTIONS,
        "",
        (JSON,),
        example="toolgate doctor -t",
    ),
    Command(
        "login",
        "sign in to a server in the browser",
        "cli.sign_in.main:login",
        (),
        "URL",
        (CLIENT,),
        reads_config=True,
        example="toolgate login https://tools.example.com/mcp",
    ),
    Command(
        "logout",
        "end this machine's access to a server",
        "cli.sign_in.main:logout",
        (),
        "URL",
        reads_config=True,
        example="toolgate logout https://tools.example.com/mcp",
    ),
    Command(
        "health",
        "exit 0 if the local server is ready",
        "cli.commands.health:health",
        ADDRESS,
        "",
        (HEALTH_URL,),
        example="toolgate health --port 8080",
    ),
    Command(
        "user add",
        "add an account; the terminal or a pipe gives the password",
        "cli.commands.user:add",
        DATABASE,
        "NAME",
        example="toolgate user add ada",
    ),
    Command("user list", "list the accounts", "cli.commands.user:list_users", DATABASE),
    Command("user remove", "remove an account and end its access", "cli.commands.user:remove", DATABASE, "NAME"),
    Command("user passwd", "change a password", "cli.commands.user:passwd", DATABASE, "NAME"),
    Command("workspace list", "list workspaces and archives", "cli.commands.workspace:list_workspaces", DATABASE),
    Command("workspace archive", "archive a workspace", "cli.commands.workspace:archive", DATABASE, "WHO"),
    Command("workspace restore", "restore a workspace", "cli.commands.workspace:restore", DATABASE, "WHO"),
    Command("workspace remove", "remove a workspace or an archive", "cli.commands.workspace:remove", DATABASE, "WHO"),
    Command("client list", "list OAuth clients", "cli.commands.oauth_client:list_clients", CLIENTS),
    Command(
        "client add",
        "add an OAuth client, with redirect URIs or the name of a platform",
        "cli.commands.oauth_client:add_client",
        DATABASE,
        "NAME REDIRECT…",
        (CONFIDENTIAL,),
        example="toolgate client add Fern https://fern.example.com/callback",
    ),
    Command(
        "client remove", "remove a client and end its access", "cli.commands.oauth_client:remove_client", CLIENTS, "ID"
    ),
    Command("token list", "list grants", "cli.commands.oauth_client:list_grants", CLIENTS),
    Command(
        "token revoke user", "end all access of a person", "cli.commands.oauth_client:revoke_user", DATABASE, "NAME"
    ),
    Command(
        "token revoke client", "end all access of a client", "cli.commands.oauth_client:revoke_client", CLIENTS, "ID"
    ),
    Command("token revoke grant", "end one grant", "cli.commands.oauth_client:revoke_grant", DATABASE, "ID"),
    Command("token revoke all", "end everyone's access", "cli.commands.oauth_client:revoke_all", DATABASE),
    Command(
        "key rotate",
        "create a new key to sign tokens",
        "cli.commands.oauth_client:rotate_key",
        KEYS_TOO,
        "",
        (DROP_OLD,),
    ),
    Command(
        "backup",
        "write the state to a file (- is standard output), also while a server runs",
        "cli.commands.backup:backup",
        KEYS_TOO,
        "FILE",
        (WITH_WORKSPACES,),
        example="toolgate backup monday.tar.gz",
    ),
    Command(
        "restore",
        "restore the state from a backup (- is standard input)",
        "cli.commands.backup:restore",
        KEYS_TOO,
        "[FILE]",
        (REPLACE, UNDO_RESTORE),
        example="toolgate restore monday.tar.gz --replace",
    ),
)
_LAST = (
    Command(
        "help", "explain a command", "cli.parsing.help:show_help", (), "[COMMAND…]", example="toolgate help user add"
    ),
    Command("version", "print the version", "cli.parsing.help:show_version"),
)


def _list_commands(plugged: Sequence[FeatureCommands]) -> dict[str, Command]:
    """Return all commands by name, those of features before the last ones."""
    listed = (*_CORE, *chain(*(each.commands for each in plugged)), *_LAST)
    commands = merge_rows("commands", ((each.name, each) for each in listed))
    for variant in chain(*(each.variants for each in plugged)):
        command = commands[variant.command]
        commands[variant.command] = msgspec.structs.replace(
            command,
            summary=variant.summary or command.summary,
            example=variant.example or command.example,
            options=(*command.options, *variant.options),
            flags=(*command.flags, variant.flag),
            variants=(*command.variants, variant),
        )
    return commands


def _list_overview(plugged: Sequence[FeatureCommands]) -> dict[str, str]:
    """Return the lines of the overview. A feature may replace a line of the core."""
    before = chain(*(each.overview.items() for each in plugged if each.is_first))
    after = chain(*(each.overview.items() for each in plugged if not each.is_first))
    return {**dict(before), **_OVERVIEW, **dict(after), **_LAST_OVERVIEW}


_PLUGGED: list[FeatureCommands] = [resolve_name(f"{ROOM}.{row.commands}") for row in FEATURES if row.commands]
COMMANDS = _list_commands(_PLUGGED)
OVERVIEW = _list_overview(_PLUGGED)
GROUPS = _GROUPS | {word: text for each in _PLUGGED for word, text in each.groups.items()}
INSTEAD_OF = _INSTEAD | {word: text for each in _PLUGGED for word, text in each.instead.items()}


def sub_commands(group: str) -> list[str]:
    """Return the words that may follow `group`; "" stands for the first word."""
    start = f"{group} " if group else ""
    return list(dict.fromkeys(name[len(start) :].split()[0] for name in COMMANDS if name.startswith(start)))
