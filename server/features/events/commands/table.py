"""List the commands of events."""

from toolgate.server.cli.parsing.command import JSON_LINES, SPAWNING, URL, Command, FeatureCommands

COMMANDS = FeatureCommands(
    commands=(
        Command(
            "events",
            "list the types of events",
            "features.events.commands.events:list_types",
            SPAWNING,
            "",
            (URL, JSON_LINES),
            example="toolgate events --url http://127.0.0.1:8080/mcp",
        ),
        Command(
            "events list",
            "list the types of events, as toolgate events does",
            "features.events.commands.events:list_types",
            SPAWNING,
            "",
            (URL, JSON_LINES),
        ),
        Command(
            "events follow",
            "print events as they happen: of one type, or of all that need no argument",
            "features.events.commands.events:follow",
            SPAWNING,
            "[TYPE] [ARGUMENT=VALUE…]",
            (URL, JSON_LINES),
            example="toolgate events follow command.ended --json",
        ),
        Command(
            "events test",
            "send a test event to all that wait for such an event of yours",
            "features.events.commands.events:send_test",
            SPAWNING,
            "TYPE [ARGUMENT=VALUE…]",
            (URL,),
            lister="toolgate events",
            example="toolgate events test command.ended --url https://tools.example.com/mcp",
        ),
    ),
    overview={"events": "list the types of events, follow events, or send a test"},
)
