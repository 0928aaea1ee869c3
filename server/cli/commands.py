"""The table of commands: what each does, which arguments, flags and options it takes, and the function that runs it.

A command's own flags are flags alone; its options have a variable and a key of the config file too.
"""

from dataclasses import dataclass

from toolgate.server.config.options import CONFIG, OPTIONS, Option
from toolgate.server.config.types import parse_bool


@dataclass(frozen=True, slots=True)
class Command:
    """One command. `run` is `module:function` in this room: it is called with the options, if the command takes any,
    and with its arguments and flags by name. It returns the exit code, or a coroutine of it."""

    name: str
    summary: str
    run: str
    arguments: tuple[str, ...] = ()  # NAME, [NAME] where it may be missing, NAME… where it may be repeated
    flags: tuple[Option, ...] = ()
    options: tuple[Option, ...] = ()
    example: str = ""


def _named(*names: str) -> tuple[Option, ...]:
    return tuple(option for option in OPTIONS if option.name in names)


STATE = _named("state")
SPAWNING = tuple(option for option in OPTIONS if not option.is_http_only)  # what a server over stdio takes
URL = Option("url", "ask the server at this URL, with the access token in TOOLGATE_TOKEN", metavar="URL")
JSON = Option("json", "print one JSON object, for programs", parse_bool)
FILTERS = (
    Option("last", "how many calls to show (default 50; 0: all)", metavar="N"),
    Option("principal", "calls of one person: a name, or the principal in the record", metavar="WHO"),
    Option("tool", "calls of one tool, or of all that match a pattern such as git_*", metavar="NAME"),
    Option("since", "calls since a time such as 2026-01-31T12:00, or 90m, 12h, 7d ago", metavar="WHEN"),
    Option("until", "calls until a time", metavar="WHEN"),
    Option("decision", "calls that were allowed, approved, …", metavar="WORD"),
    Option("outcome", "calls that ended as ok, error, refused, cancelled, fault, task or asked", metavar="WORD"),
    Option("json", "print the lines of the record themselves", parse_bool),
    Option("follow", "keep printing new calls", parse_bool),
)

GROUPS = {  # commands of several words
    "user": "accounts of the built-in login",
    "workspace": "people's workspaces",
    "client": "OAuth clients",
    "token": "what people granted to clients",
    "token revoke": "end access",
    "key": "the keys that sign tokens",
}
COMMANDS = {
    command.name: command
    for command in (
        Command(
            "serve",
            "serve MCP over stdio, or over HTTP with -t or -s (the same as no command)",
            "serve:serve",
            options=OPTIONS,
            example="toolgate -t --auth none",
        ),
        Command(
            "demo",
            "take a tour: call every tool on local data",
            "demo:run_tour",
            options=SPAWNING,
            example="toolgate demo",
        ),
        Command(
            "call",
            "call one tool and print its content",
            "call:call",
            ("TOOL", "[ARGUMENT=VALUE…]"),
            (URL,),
            SPAWNING,
            "toolgate call Bash command='echo hello'",
        ),
        Command(
            "tools", "list the tools, prompts and resources", "call:list_parts", (), (URL,), SPAWNING, "toolgate tools"
        ),
        Command(
            "config",
            "print the configuration that adds this server to an MCP client",
            "config:print_config",
            ("CLIENT",),
            options=(*SPAWNING, *_named("public-url")),
            example="toolgate config claude-desktop",
        ),
        Command(
            "doctor",
            "check this machine, or with --url a server as a hosted client meets it",
            "doctor.main:check",
            (),
            (URL, JSON),
            OPTIONS,
            "toolgate doctor --url https://tools.example.com/mcp",
        ),
        Command(
            "health",
            "exit 0 if the local server is ready (for container health checks)",
            "health:health",
            (),
            (Option("url", "ask the server at this URL", metavar="URL"),),
            _named("host", "port"),
            "toolgate health --port 8080",
        ),
        Command(
            "user add",
            "add an account; the password is read from the terminal or a pipe",
            "user:add",
            ("NAME",),
            options=STATE,
            example="toolgate user add ada",
        ),
        Command("user list", "list the accounts", "user:list_users", options=STATE),
        Command("user remove", "remove an account and end its access", "user:remove", ("NAME",), options=STATE),
        Command("user passwd", "change a password", "user:passwd", ("NAME",), options=STATE),
        Command("workspace list", "list workspaces and archives", "workspace:list_workspaces", options=STATE),
        Command("workspace archive", "archive a workspace", "workspace:archive", ("WHO",), options=STATE),
        Command("workspace restore", "restore a workspace", "workspace:restore", ("WHO",), options=STATE),
        Command("workspace remove", "remove a workspace or an archive", "workspace:remove", ("WHO",), options=STATE),
        Command("client list", "list OAuth clients", "oauth_client:list_clients", options=_named("state", "clients")),
        Command(
            "client add",
            "add an OAuth client; each REDIRECT is a redirect URI or the name of a platform",
            "oauth_client:add_client",
            ("NAME", "REDIRECT…"),
            (Option("confidential", "give the client a secret, which it can keep", parse_bool),),
            STATE,
            "toolgate client add Fern https://fern.example.com/callback",
        ),
        Command(
            "client remove",
            "remove an OAuth client and end its access",
            "oauth_client:remove_client",
            ("ID",),
            options=_named("state", "clients"),
        ),
        Command("token list", "list grants", "oauth_client:list_grants", options=_named("state", "clients")),
        Command(
            "token revoke user", "end all access of a person", "oauth_client:revoke_user", ("NAME",), options=STATE
        ),
        Command(
            "token revoke client",
            "end all access of a client",
            "oauth_client:revoke_client",
            ("ID",),
            options=_named("state", "clients"),
        ),
        Command("token revoke grant", "end one grant", "oauth_client:revoke_grant", ("ID",), options=STATE),
        Command("token revoke all", "end everybody's access", "oauth_client:revoke_all", options=STATE),
        Command(
            "key rotate",
            "let a new key sign tokens",
            "oauth_client:rotate_key",
            (),
            (Option("drop-old", "end all access tokens; for when a key may have leaked", parse_bool),),
            STATE,
        ),
        Command(
            "audit",
            "show the newest calls on record",
            "audit:show",
            (),
            FILTERS,
            STATE,
            "toolgate audit --tool Bash --since 1d",
        ),
        Command("audit verify", "check that the record of calls is whole", "audit:verify", options=STATE),
        Command(
            "backup",
            "write the state to one file, or with - to standard output, also while a server runs",
            "backup:backup",
            ("FILE",),
            (Option("with-workspaces", "include people's workspaces; no server may run", parse_bool),),
            STATE,
            "toolgate backup monday.tar.gz",
        ),
        Command(
            "restore",
            "restore the state from a backup, or with - from standard input",
            "backup:restore",
            ("FILE",),
            (Option("replace", "move aside what is in the state folder", parse_bool),),
            STATE,
            "toolgate restore monday.tar.gz",
        ),
        Command("help", "explain a command", "help:show_help", ("[COMMAND…]",), example="toolgate help user add"),
        Command("version", "print the version", "help:show_version"),
    )
}


def sub_commands(group: str) -> list[str]:
    """Return the words that may follow `group`; "" has the first words of all commands."""
    start = f"{group} " if group else ""
    return list(dict.fromkeys(name[len(start) :].split()[0] for name in COMMANDS if name.startswith(start)))


def flags_of(command: Command) -> list[str]:
    """Return all flags that a command takes, short ones too."""
    taken = (*command.flags, *((CONFIG, *command.options) if command.options else ()))
    return [flag for option in taken for flag in (option.flag, option.short) if flag]


def usage(command: Command) -> str:
    """Return how the command is called, on one line."""
    name = () if command.name == "serve" else (command.name,)
    return " ".join(("toolgate", *name, *command.arguments, *(["[OPTIONS]"] if flags_of(command) else [])))
