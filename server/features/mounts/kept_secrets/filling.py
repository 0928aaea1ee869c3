"""Put the values of secrets in the place of their names."""

import re
from collections.abc import Mapping
from urllib.parse import quote

from toolgate.server.features.mounts.config.secret_references import REFERENCE, find_names
from toolgate.server.features.mounts.upstream.errors import MountError

HEADER = re.compile(r"[\t -~]*")  # RFC 9110 section 5.5, without what no server can read for sure


def fill_in(text: str, values: Mapping[str, str]) -> str:
    """Return the text with the values of its secrets, which may have any characters."""
    return REFERENCE.sub(lambda found: values[found[1]], text)


def fill_in_header(name: str, text: str, values: Mapping[str, str]) -> str:
    """Return the value of a header. Raises MountError for what no header can carry."""
    value = fill_in(text, values)
    if not HEADER.fullmatch(value):
        raise MountError(
            "SECRET_UNFIT", f"the secret in header {name} must be of printable ASCII on one line: set it again"
        )
    return value


def fill_in_url(url: str, values: Mapping[str, str]) -> str:
    """Return the URL; what a value has beside letters, digits and -._~ is encoded. Raises MountError for a value that
    would lead up in the path."""
    for name in find_names([url]):
        if not values[name].strip("."):
            raise MountError("SECRET_UNFIT", f"the secret {name} can't stand in a URL: set it again")
    return fill_in(url, {name: encode(value) for name, value in values.items()})


def encode(value: str) -> str:
    """Return a value as it stands in a URL."""
    return quote(value, safe="")
