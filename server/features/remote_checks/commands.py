"""Add --url to `toolgate doctor`: check the server at a URL in place of this machine."""

from toolgate.server.base.version import VERSION
from toolgate.server.cli.parsing.command import URL, FeatureCommands, Variant
from toolgate.server.config.load import Config

SUMMARY = "check this machine, or a server at --url"

COMMANDS = FeatureCommands(
    variants=(
        Variant(
            "doctor",
            URL,
            "features.remote_checks.commands:check_server",
            summary=SUMMARY,
            example="toolgate doctor --url https://tools.example.com/mcp",
        ),
    ),
    overview={"doctor": SUMMARY},
    instead=dict.fromkeys(
        ("check", "test", "diagnose", "info"), "toolgate doctor checks this machine, or a server at --url"
    ),
)


async def check_server(config: Config, *, url: str, json: bool) -> int:
    """Check the server at `url` as a hosted client sees it; 0 if no check fails."""
    from toolgate.server.cli.doctor.main import run_rows  # start-up: each command line lists the commands
    from toolgate.server.cli.sign_in.credentials import find_token
    from toolgate.server.features.remote_checks.checks import remote_checks

    rows = remote_checks(url, (await find_token(config, url)).text)
    return await run_rows(config, rows, {"toolgate": VERSION, "url": url} if json else None)
