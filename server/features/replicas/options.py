"""Declare the option of replicas, and refuse it where it can't work. Imported at each start: light."""

from typing import TYPE_CHECKING

from toolgate.server.base.errors import UsageError
from toolgate.server.config.option import Option
from toolgate.server.config.types import parse_secret_url

if TYPE_CHECKING:
    from toolgate.server.config.load import Config
    from toolgate.server.features.replicas.redis_url import RedisUrl


def parse_redis(word: str) -> "RedisUrl":
    """Return the URL of Redis, from a file for file:PATH. No error repeats it: it may have a password."""
    from toolgate.server.features.replicas.redis_url import parse_redis_url  # start-up: only replicas have it

    return parse_secret_url(word, parse_redis_url)


OPTIONS = {
    "Replicas": (
        Option(
            "redis",
            "Redis or Valkey that servers with the same state and workspaces share: redis://:PASSWORD@HOST, "
            "rediss:// or unix://, or file:PATH for a file with that",
            parse_redis,
            metavar="URL",
            is_http_only=True,
            is_secret=True,
        ),
    ),
}


def check_options(config: "Config") -> None:
    """Raise UsageError where replicas would not share all that they need to."""
    if not config.is_given("database"):
        raise UsageError("--redis needs --database: servers that share sessions must share the rest of the state, too")
    if not config.is_given("node"):
        raise UsageError(
            "--redis needs --node: with commands in the servers, each person would have one sandbox and one set of "
            "background tasks per server"
        )
