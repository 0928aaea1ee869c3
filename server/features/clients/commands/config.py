"""Print the configuration for an MCP client (`toolgate config CLIENT`)."""

import sys
from collections.abc import Sequence

from toolgate.server.base.errors import UsageError
from toolgate.server.config.load import Config
from toolgate.server.features.clients import snippets
from toolgate.server.features.clients.commands.start_check import check_start


def show_config(config: Config, *, client: str) -> int:
    """Print the configuration to standard output, and its place to standard error."""
    own = config.to_client_flags()
    snippet = snippets.build_snippet(client, own, config.public_url, config.environment)
    print(snippet.text)
    print(snippet.where, file=sys.stderr)
    if config.public_url is None:
        _warn_of_start(config, own)
    if snippet.link:
        print(f"or open this link: {snippet.link}", file=sys.stderr)
    return 0


def _warn_of_start(config: Config, flags: Sequence[str]) -> None:
    """Warn if the client's server will not start with these flags: what they name may still be made."""
    try:
        check_start("config", config, flags, keeps_state=False)
    except UsageError as error:
        print(f"note: {error}", file=sys.stderr)
