"""Declare the options of mounts, and refuse those that do not fit the others. Imported at each start: light."""

from typing import TYPE_CHECKING

from toolgate.server.base.errors import UsageError
from toolgate.server.base.principals.sign_in_methods import SIGN_IN_METHODS, parse_method
from toolgate.server.config.option import Option

if TYPE_CHECKING:
    from toolgate.server.config.load import Config

PREFIXES = {method.prefix: method for method in SIGN_IN_METHODS}
FORMS = ", ".join(f"{prefix}:…" for prefix in PREFIXES)


def parse_person(word: str) -> str:
    """Return a person as rules name them. Raises ValueError."""
    prefix, _, name = word.partition(":")
    if prefix not in PREFIXES or not name:
        raise ValueError(f"must be one of {FORMS}, such as account:ada, not {word!r}")
    return word


OPTIONS = {
    "Sign-in": (
        Option(
            "administrators",
            "who sees all people's connections to mounted servers on the pages and can end them, as rules name people: "
            "account:ada, github:583231",
            parse_person,
            (),
            "WHO",
            is_http_only=True,
            item_pattern=rf"(?:{'|'.join(PREFIXES)}):[^:]+",
        ),
    ),
}


def check_options(config: "Config") -> None:
    """Raise UsageError for administrators who can't sign in here, and where the table of mounts can't be read."""
    from toolgate.server.features.mounts.config.table import check_mounts  # start-up: few servers have mounts

    check_mounts(config)
    if config.administrators and config.auth != "oauth":
        raise UsageError("--administrators needs people who sign in here: it has no effect with another --auth")
    ways = {parse_method(way)[0].prefix for way in config.login} or {PREFIXES["account"].prefix}
    for word in config.administrators:
        prefix = word.partition(":")[0]
        if prefix not in ways:
            raise UsageError(f"--administrators {word} has no effect without --login {PREFIXES[prefix].form}")
