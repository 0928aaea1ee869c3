"""List the commands of mounts."""

from toolgate.server.cli.parsing.command import JSON, STATE, Command, FeatureCommands, pick_options
from toolgate.server.config.option import Option
from toolgate.server.config.types import parse_bool

DATABASE = pick_options("state", opens=("state",))  # where it is kept what was approved
SERVER_URL = Option("url", "the server at this URL, instead of a command", metavar="URL")
HEADER = Option("header", "header of each request to the URL", default=(), metavar="NAME=VALUE")
VARIABLE = Option(
    "env",
    "variable of the command; ${env:OTHER} in a value is taken from the server's environment",
    default=(),
    metavar="NAME=VALUE",
)
PER = Option("per", "who shares a connection to the server: person, session or all", metavar="WHO")
SCOPE = Option("scope", "the OAuth scope that a call needs (default tools:plugins)", metavar="SCOPE")
PATTERNS = Option(
    "tools",
    "tools, prompts and resources to serve, such as 'search_*,!search_private' (default: all)",
    default=(),
    metavar="PATTERN,…",
)
NETWORK = Option(
    "network",
    "host that the command reaches, such as api.example.com or *.example.com (default: as the person's shell)",
    default=(),
    metavar="HOST",
)
FILES = Option("files", "path that the command sees, and with :rw behind it writes to", default=(), metavar="PATH")
REPLACE = Option("replace", "replace what has the same name", parse_bool)
NO_INSTALL = Option("no-install", "don't install the package of an npx or uvx command", parse_bool)
NO_TEST = Option("no-test", "don't start or reach the server to show what it lists", parse_bool)
DRY_RUN = Option("dry-run", "show what would be written, and write nothing", parse_bool)
FOR = Option("for", "the secret of one person, as toolgate user list names them", metavar="PERSON")
SEALED = pick_options("state", opens=("state", "keys"))

APPROVE = Option("approve", "approve what is held: all of it, or the tools that are named", parse_bool)
REFUSE = Option("refuse", "keep out what is held: all of it, or the tools that are named", parse_bool)

COMMANDS = FeatureCommands(
    commands=(
        Command(
            "mount add",
            "mount the MCP server that a command starts, or the one at a URL",
            "features.mounts.commands.edit:add_mount",
            DATABASE,
            "NAME [COMMAND…]",
            (SERVER_URL, HEADER, VARIABLE, PER, SCOPE, PATTERNS, NETWORK, FILES, REPLACE, NO_INSTALL, NO_TEST),
            example="toolgate mount add files -- npx -y @modelcontextprotocol/server-filesystem /srv/files",
            is_url_running=False,
        ),
        Command(
            "mount remove",
            "remove a mounted server",
            "features.mounts.commands.edit:remove_mount",
            DATABASE,
            "NAME",
            lister="toolgate mount list",
            example="toolgate mount remove files",
        ),
        Command(
            "mount test",
            "start or reach a mounted server once, and list what it has",
            "features.mounts.commands.testing:test_mount",
            STATE,
            "NAME",
            (JSON,),
            lister="toolgate mount list",
            example="toolgate mount test files",
        ),
        Command(
            "mount restart",
            "have a mounted server started again at the next call, in the servers that run",
            "features.mounts.commands.restart:restart_mount",
            STATE,
            "NAME",
            lister="toolgate mount list",
            example="toolgate mount restart files",
        ),
        Command(
            "mount logs",
            "show what has happened to a mounted server, and what it wrote to standard error",
            "features.mounts.commands.logs:print_logs",
            STATE,
            "NAME",
            (JSON,),
            lister="toolgate mount list",
            example="toolgate mount logs files",
        ),
        Command(
            "mount list",
            "list the mounted servers, and what is wrong with any",
            "features.mounts.commands.listing:list_mounts",
            DATABASE,
            "",
            (JSON,),
            example="toolgate mount list",
        ),
        Command(
            "mount review",
            "show what a mounted server has changed since it was approved, and decide",
            "features.mounts.commands.review:review_mount",
            DATABASE,
            "NAME [TOOL…]",
            (APPROVE, REFUSE, JSON),
            lister="toolgate mount list",
            example="toolgate mount review files --approve read_file",
        ),
        Command(
            "mount import",
            "mount the servers in the file of another MCP client",
            "features.mounts.commands.import_file:import_mounts",
            STATE,
            "FILE",
            (DRY_RUN, REPLACE),
            example="toolgate mount import ~/.cursor/mcp.json --dry-run",
        ),
        Command(
            "secret set",
            "keep a secret that mounts name as ${secret:NAME}; its value comes from standard input",
            "features.mounts.commands.secret:set_secret",
            SEALED,
            "NAME",
            (FOR,),
            example="toolgate secret set GITHUB_TOKEN < token.txt",
        ),
        Command(
            "secret list",
            "list the secrets of mounts, without their values",
            "features.mounts.commands.secret:list_secrets",
            SEALED,
            "",
            (FOR, JSON),
            example="toolgate secret list",
        ),
        Command(
            "secret remove",
            "remove a secret",
            "features.mounts.commands.secret:remove_secret",
            SEALED,
            "NAME",
            (FOR,),
            lister="toolgate secret list",
            example="toolgate secret remove GITHUB_TOKEN",
        ),
    ),
    groups={"mount": "other MCP servers behind this one", "secret": "the secrets that mounts name"},
    overview={"mount, secret": "other MCP servers behind this one, and their keys"},
)
