"""List the commands that configure clients."""

from toolgate.server.cli.parsing.command import SPAWNING, Command, FeatureCommands, pick_options
from toolgate.server.config.option import Option
from toolgate.server.config.types import parse_bool

CONFIGURING = (*SPAWNING, *pick_options("public-url"))
INSTALL_URL = Option("url", "add the server at this URL instead of one that the client starts", metavar="URL")
PROJECT = Option("project", "use the client's file of the current project", parse_bool)
DRY_RUN = Option("dry-run", "show the change, and write nothing", parse_bool)
NAMES = "toolgate.server.features.clients.clients:CLIENTS"
INSTALLABLE = "toolgate.server.features.clients.clients:FILE_CLIENTS"

COMMANDS = FeatureCommands(
    commands=(
        Command(
            "install",
            "add this server to an MCP client's own configuration, with these options",
            "features.clients.commands.install:install",
            CONFIGURING,
            "[CLIENT]",
            (INSTALL_URL, PROJECT, DRY_RUN),
            INSTALLABLE,
            example="toolgate install cursor --sandbox bwrap",
        ),
        Command(
            "uninstall",
            "remove this server from an MCP client's configuration",
            "features.clients.commands.install:uninstall",
            (),
            "[CLIENT]",
            (PROJECT, DRY_RUN),
            INSTALLABLE,
            example="toolgate uninstall cursor",
        ),
        Command(
            "config",
            "print an MCP client's configuration",
            "features.clients.commands.config:show_config",
            CONFIGURING,
            "CLIENT",
            (),
            NAMES,
            example="toolgate config claude-desktop",
        ),
    ),
    overview={
        "install, uninstall": "add this server to an MCP client, or remove it",
        "config": "print an MCP client's configuration",
    },
    instead={
        **dict.fromkeys(("setup", "add", "init", "connect"), "toolgate install adds it to an MCP client"),
        **dict.fromkeys(("remove", "rm", "delete"), "toolgate uninstall removes it from an MCP client"),
    },
    is_first=True,
)
