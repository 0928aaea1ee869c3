"""Declare the options of the state in PostgreSQL. Imported at each start: light."""

from functools import partial

from toolgate.server.config.option import Option
from toolgate.server.config.types import parse_path, parse_secret_url
from toolgate.server.features.postgres.database_url import DatabaseUrl, parse_database_url


def parse_database(word: str) -> DatabaseUrl:
    """Return the URL of the database, from a file for file:PATH. No error repeats it: it has a password."""
    return parse_secret_url(word, parse_database_url)


_http = partial(Option, is_http_only=True, is_secret=True)

OPTIONS = {
    "Replicas": (
        _http(
            "database",
            "PostgreSQL for the state, in place of STATE/state.db: postgresql://USER:PASSWORD@HOST/NAME, or file:PATH "
            "for a file with that",
            parse_database,
            metavar="URL",
            opens="state",
        ),
        _http(
            "secret",
            "file with at least 32 random bytes, the same for all servers on --database: it seals the keys that they "
            "share there (default: the keys are in STATE/keys)",
            parse_path,
            metavar="FILE",
            opens="keys",
        ),
    ),
}
