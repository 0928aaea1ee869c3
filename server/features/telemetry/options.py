"""Declare the options of the audit log and of metrics. Imported at each start: light."""

from typing import TYPE_CHECKING

from toolgate.server.config.option import Option
from toolgate.server.config.types import one_of, parse_path

if TYPE_CHECKING:
    from toolgate.server.config.load import Config

OPTIONS = {
    "Logs and records": (
        Option(
            "audit",
            "record tool calls in STATE/audit, or in a shared database: off, on (a digest of the arguments), full (the "
            "arguments, with apparent secrets redacted) (default: on over HTTP and with a sandbox, else off)",
            one_of("off", "on", "full"),
            metavar="LEVEL",
        ),
        Option(
            "metrics-token",
            "file with the token for /metrics (default: STATE/keys/metrics, created at start; not needed if the server "
            "serves only this machine)",
            parse_path,
            metavar="FILE",
            is_http_only=True,
            is_secret=True,
        ),
    ),
}


def check_options(config: "Config") -> None:
    """Raise UsageError for a file that holds no token."""
    if config.is_remote and config.metrics_token is not None:
        from toolgate.server.state.keys.token_file import read_token  # start-up

        read_token(config.metrics_token)
