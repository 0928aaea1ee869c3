"""List the commands: what each does, its arguments, flags and options, and the function that runs it.

Flags belong to one command; options can also be set by a variable or a key of the config file.
"""

import msgspec

from toolgate.server.config.node_address import parse_node_address
from toolgate.server.config.option import CONFIG, SERVER, Option
from toolgate.server.config.options import OPTIONS
from toolgate.server.config.types import parse_bool


class Command(msgspec.Struct, frozen=True):
    """One command. `run` is `module:function` of `server/cli`. It gets the options, if the command takes any, and
    arguments and flags by name, and returns the exit code, or a coroutine for it."""

    name: str
    summary: str
    run: str
    options: tuple[Option, ...] = ()
    usage: str = ""  # the arguments: NAME, optional [NAME], repeated NAME…
    flags: tuple[Option, ...] = ()
    choices: str = ""  # `module:NAME`, a table of what the one argument may be, each with a title

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(self.usage.split())

    @property
    def example(self) -> str:
        return EXAMPLES.get(self.name, "")


def _options(*names: str) -> tuple[Option, ...]:
    return tuple(option for option in OPTIONS if option.name in names)


STATE = _options("state")
DATABASE = _options("state", "database")
KEYS_TOO = _options("state", "database", "secret")  # in the database
CLIENTS = _options("state", "database", "clients")
ADDRESS = _options("host", "port", "node-certificate")
SPAWNING = tuple(option for option in OPTIONS if not option.is_http_only)  # options of a server over stdio
CONFIGURING = (*SPAWNING, *_options("public-url"))
URL = Option("url", "use the server at this URL, as toolgate login or TOOLGATE_TOKEN allows", metavar="URL")
CLIENT = Option("client", "id of a client that the server knows, where none can register itself", metavar="ID")
AT_NODE = tuple(option for option in OPTIONS if option.place != SERVER)
LISTEN = Option(
    "listen",
    "where servers connect: unix:/PATH (default: STATE/node.sock), or HOST:PORT by TLS, with --node-certificate",
    parse_node_address,
    (),
    "ADDRESS",
)
NODES = _options("state", "database", "secret", "node", "node-certificate")
UNDO = Option("undo", "give it new people again", parse_bool)
UNDO_ADOPT = Option("undo", "place them where there is room again", parse_bool)
NODE_NAME = Option(
    "name", "the node's name, for its first start, which keeps it (default: the host name)", metavar="NAME"
)
MAX_PEOPLE = Option(
    "max-people", "how many people the node takes; others go to other nodes (default: any number)", metavar="N"
)
KEYS = Option("folder", "folder for the files (default: STATE/keys)", metavar="FOLDER")
RENEW = Option("replace", "make new certificates in place of those that are there", parse_bool)
HEALTH_URL = Option("url", "check the server at this URL", metavar="URL")
HEALTH_NODE = Option("node", "check the node at this address", parse_node_address, metavar="ADDRESS")
CONFIDENTIAL = Option("confidential", "give the client a secret, for clients that can keep one", parse_bool)
DROP_OLD = Option("drop-old", "end all access tokens; for when a key may have leaked", parse_bool)
WITH_WORKSPACES = Option("with-workspaces", "include people's workspaces; no server may run", parse_bool)
REPLACE = Option("replace", "move what the backup replaces to STATE/replaced-TIME; the rest stays", parse_bool)
UNDO_RESTORE = Option("undo", "put back what was there before a restore that was interrupted", parse_bool)
JSON = Option("json", "print one JSON object, for programs", parse_bool)
JSON_LINES = Option("json", "print a JSON object on each line, for programs", parse_bool)
OUTPUT = Option("output", "save the image in the answer to this file", metavar="FILE")
INSTALL_URL = Option("url", "add the server at this URL instead of one that the client starts", metavar="URL")
PROJECT = Option("project", "use the client's file of the current project", parse_bool)
DRY_RUN = Option("dry-run", "show the change, and write nothing", parse_bool)
FILTERS = (
    Option("last", "how many calls to show (default 50; 0: all)", metavar="N"),
    Option("principal", "calls of one person: a name, or the principal in the audit log", metavar="WHO"),
    Option("tool", "calls of one tool, or of all that match a pattern such as git_*", metavar="NAME"),
    Option("since", "calls since 2026-01-31T12:00, today, yesterday, or 90m, 12h, 7d ago", metavar="WHEN"),
    Option("until", "calls until a time", metavar="WHEN"),
    Option(
        "decision",
        "calls with this decision: allowed, approved, approved_session, approved_always, denied, declined, cancelled, "
        "unanswered, asked, cannot_ask, plan, limited or scope",
        metavar="WORD",
    ),
    Option("outcome", "calls that ended as ok, error, refused, cancelled, fault, task or asked", metavar="WORD"),
    Option("json", "print the lines of the audit log as JSON", parse_bool),
    Option("follow", "keep printing new calls", parse_bool),
)

NAMES = "toolgate.server.client_config.clients:CLIENTS"
INSTALLABLE = "toolgate.server.client_config.clients:FILE_CLIENTS"

GROUPS = {  # commands of several words
    "user": "accounts of the built-in login",
    "workspace": "people's workspaces",
    "client": "OAuth clients",
    "token": "people's grants to clients",
    "token revoke": "end access",
    "key": "the keys that sign tokens",
}
INSTEAD_OF = {  # words that people try → what to type
    **dict.fromkeys(("start", "run", "server", "stdio", "http"), "toolgate serve serves, and -t serves over HTTP"),
    **dict.fromkeys(("stop", "restart", "status"), "a service manager stops and starts the server: systemctl"),
    **dict.fromkeys(
        ("update", "upgrade", "self"),
        "upgrade it as it was installed: docs/quickstart-local.md has the command for each way",
    ),
    **dict.fromkeys(("setup", "add", "init", "connect"), "toolgate install adds it to an MCP client"),
    **dict.fromkeys(("remove", "rm", "delete"), "toolgate uninstall removes it from an MCP client"),
    **dict.fromkeys(("list", "ls"), "toolgate tools lists the tools"),
    **dict.fromkeys(("logs", "log"), "--logs DIR keeps the log of the server; toolgate audit shows its calls"),
    **dict.fromkeys(("check", "test", "diagnose", "info"), "toolgate doctor checks this machine, or a server at --url"),
}
EXAMPLES = {
    "serve": "toolgate -t --auth none",
    "demo": "toolgate demo",
    "call": "toolgate call Bash command='echo hello'",
    "tools": "toolgate tools --url http://127.0.0.1:8080/mcp",
    "events": "toolgate events --url http://127.0.0.1:8080/mcp",
    "events follow": "toolgate events follow command.ended --json",
    "events test": "toolgate events test command.ended --url https://tools.example.com/mcp",
    "config": "toolgate config claude-desktop",
    "install": "toolgate install cursor --sandbox bwrap",
    "uninstall": "toolgate uninstall cursor",
    "doctor": "toolgate doctor --url https://tools.example.com/mcp",
    "login": "toolgate login https://tools.example.com/mcp",
    "logout": "toolgate logout https://tools.example.com/mcp",
    "node": "toolgate node --listen unix:/run/toolgate-node/node.sock",
    "node doctor": "toolgate node doctor --state /var/lib/toolgate-node",
    "node certificate": "toolgate node certificate node1.example.com",
    "node list": "toolgate node list --node unix:/run/toolgate-node/node.sock",
    "node drain": "toolgate node drain cellar",
    "node limit": "toolgate node limit cellar 20",
    "node adopt": "toolgate node adopt cellar",
    "node move": "toolgate node move ada attic",
    "health": "toolgate health --port 8080",
    "user add": "toolgate user add ada",
    "client add": "toolgate client add Fern https://fern.example.com/callback",
    "audit": "toolgate audit --tool Bash --since 1d",
    "audit verify": "toolgate audit verify",
    "backup": "toolgate backup monday.tar.gz",
    "restore": "toolgate restore monday.tar.gz --replace",
    "help": "toolgate help user add",
}
COMMANDS = {
    command.name: command
    for command in (
        Command(
            "serve", "serve MCP over stdio, or with -t or -s over HTTP (also without a command)", "serve:serve", OPTIONS
        ),
        Command("demo", "take a tour: call every tool on local data", "commands.demo:run_tour", SPAWNING),
        Command(
            "call",
            "call one tool and print its content",
            "commands.call:call",
            SPAWNING,
            "TOOL [ARGUMENT=VALUE…]",
            (URL, JSON, OUTPUT),
        ),
        Command("tools", "list the tools, prompts and resources", "commands.call:list_parts", SPAWNING, "", (URL,)),
        Command("events", "list the types of events", "events:list_types", SPAWNING, "", (URL, JSON_LINES)),
        Command(
            "events list",
            "list the types of events, as toolgate events does",
            "events:list_types",
            SPAWNING,
            "",
            (URL, JSON_LINES),
        ),
        Command(
            "events follow",
            "print events as they happen: of one type, or of all that need no argument",
            "events:follow",
            SPAWNING,
            "[TYPE] [ARGUMENT=VALUE…]",
            (URL, JSON_LINES),
        ),
        Command(
            "events test",
            "send a test event to all that wait for such an event of yours",
            "events:send_test",
            SPAWNING,
            "TYPE [ARGUMENT=VALUE…]",
            (URL,),
        ),
        Command(
            "install",
            "add this server to an MCP client's own configuration, with these options",
            "commands.install:install",
            CONFIGURING,
            "[CLIENT]",
            (INSTALL_URL, PROJECT, DRY_RUN),
            INSTALLABLE,
        ),
        Command(
            "uninstall",
            "remove this server from an MCP client's configuration",
            "commands.install:uninstall",
            (),
            "[CLIENT]",
            (PROJECT, DRY_RUN),
            INSTALLABLE,
        ),
        Command(
            "config",
            "print an MCP client's configuration",
            "parsing.help:show_config",
            CONFIGURING,
            "CLIENT",
            (),
            NAMES,
        ),
        Command("doctor", "check this machine, or a server at --url", "doctor.main:check", OPTIONS, "", (URL, JSON)),
        Command(
            "node",
            "run commands, files and browser in a separate process that survives server restarts",
            "node:serve_node",
            AT_NODE,
            "",
            (LISTEN, NODE_NAME, MAX_PEOPLE),
        ),
        Command(
            "node doctor",
            "check whether this machine can run a node, with its options",
            "doctor.main:check_node",
            AT_NODE,
            "",
            (LISTEN, JSON),
        ),
        Command(
            "node certificate",
            "make the certificates for a node at HOST:PORT and for its servers; HOST is the node's name or address",
            "node_certificate:make_certificates",
            STATE,
            "[HOST…]",
            (KEYS, RENEW),
        ),
        Command("node list", "list nodes, and how many people are on each", "nodes:list_nodes", NODES),
        Command("node drain", "give a node no new people", "nodes:drain", NODES, "NAME", (UNDO,)),
        Command("node limit", "set how many people a node gets; 0 is any number", "nodes:limit", NODES, "NAME NUMBER"),
        Command(
            "node adopt",
            "place people who are on no node where their files are, as the node says",
            "nodes:adopt",
            NODES,
            "NAME",
            (UNDO_ADOPT,),
        ),
        Command("node move", "move a person's workspace to another node", "nodes:move", NODES, "WHO NAME"),
        Command("login", "sign in to a server in the browser", "sign_in.main:login", STATE, "URL", (CLIENT,)),
        Command("logout", "end this machine's access to a server", "sign_in.main:logout", STATE, "URL"),
        Command(
            "health",
            "exit 0 if the local server is ready",
            "commands.health:health",
            ADDRESS,
            "",
            (HEALTH_URL, HEALTH_NODE),
        ),
        Command(
            "user add",
            "add an account; the terminal or a pipe gives the password",
            "commands.user:add",
            DATABASE,
            "NAME",
        ),
        Command("user list", "list the accounts", "commands.user:list_users", DATABASE),
        Command("user remove", "remove an account and end its access", "commands.user:remove", DATABASE, "NAME"),
        Command("user passwd", "change a password", "commands.user:passwd", DATABASE, "NAME"),
        Command("workspace list", "list workspaces and archives", "commands.workspace:list_workspaces", DATABASE),
        Command("workspace archive", "archive a workspace", "commands.workspace:archive", DATABASE, "WHO"),
        Command("workspace restore", "restore a workspace", "commands.workspace:restore", DATABASE, "WHO"),
        Command("workspace remove", "remove a workspace or an archive", "commands.workspace:remove", DATABASE, "WHO"),
        Command("client list", "list OAuth clients", "commands.oauth_client:list_clients", CLIENTS),
        Command(
            "client add",
            "add an OAuth client, with redirect URIs or the name of a platform",
            "commands.oauth_client:add_client",
            DATABASE,
            "NAME REDIRECT…",
            (CONFIDENTIAL,),
        ),
        Command(
            "client remove", "remove a client and end its access", "commands.oauth_client:remove_client", CLIENTS, "ID"
        ),
        Command("token list", "list grants", "commands.oauth_client:list_grants", CLIENTS),
        Command(
            "token revoke user", "end all access of a person", "commands.oauth_client:revoke_user", DATABASE, "NAME"
        ),
        Command(
            "token revoke client", "end all access of a client", "commands.oauth_client:revoke_client", CLIENTS, "ID"
        ),
        Command("token revoke grant", "end one grant", "commands.oauth_client:revoke_grant", DATABASE, "ID"),
        Command("token revoke all", "end everyone's access", "commands.oauth_client:revoke_all", DATABASE),
        Command(
            "key rotate",
            "create a new key to sign tokens",
            "commands.oauth_client:rotate_key",
            KEYS_TOO,
            "",
            (DROP_OLD,),
        ),
        Command("audit", "show the newest calls in the audit log", "commands.audit:show", KEYS_TOO, "", FILTERS),
        Command(
            "audit verify", "check that the audit log is complete and unchanged", "commands.audit:verify", KEYS_TOO
        ),
        Command(
            "backup",
            "write the state to a file (- is standard output), also while a server runs",
            "commands.backup:backup",
            KEYS_TOO,
            "FILE",
            (WITH_WORKSPACES,),
        ),
        Command(
            "restore",
            "restore the state from a backup (- is standard input)",
            "commands.backup:restore",
            KEYS_TOO,
            "[FILE]",
            (REPLACE, UNDO_RESTORE),
        ),
        Command("help", "explain a command", "parsing.help:show_help", (), "[COMMAND…]"),
        Command("version", "print the version", "parsing.help:show_version"),
    )
}


def sub_commands(group: str) -> list[str]:
    """Return the words that may follow `group`; "" stands for the first word."""
    start = f"{group} " if group else ""
    return list(dict.fromkeys(name[len(start) :].split()[0] for name in COMMANDS if name.startswith(start)))


def flags_of(command: Command) -> list[str]:
    """Return all flags that a command takes, short ones too."""
    taken = (*command.flags, *((CONFIG, *command.options) if command.options else ()))
    return [flag for option in taken for flag in (option.flag, option.short) if flag]


def usage(command: Command) -> str:
    """Return the command's usage on one line."""
    name = () if command.name == "serve" else (command.name,)
    return " ".join(("toolgate", *name, *command.arguments, *(["[OPTIONS]"] if flags_of(command) else [])))
