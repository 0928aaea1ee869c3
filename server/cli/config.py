"""`toolgate config CLIENT`: print the configuration that adds this server to an MCP client."""

import os
import sys

from toolgate.server import client_config
from toolgate.server.config.load import Config


def print_config(config: Config, *, client: str) -> int:
    """Print what to paste on standard output, and where it belongs on standard error."""
    own = config.to_flags()
    if config.is_remote:  # where a config file says so, the client's own server would not speak stdio
        own += ["--config", os.devnull]
    body, where = client_config.build_snippet([client], own, config.public_url)
    print(body)
    print(where, file=sys.stderr)
    return 0
