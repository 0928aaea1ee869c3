"""Read the values of a mount's keys. Each function raises MountValueError or ValueError, which says what must be."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from toolgate.server.base.principals.name_patterns import check_order, parse_pattern
from toolgate.server.base.principals.scopes import SCOPE_PATTERN
from toolgate.server.base.text import suggest
from toolgate.server.config.types import one_of, parse_seconds
from toolgate.server.features.mounts.config import secret_references
from toolgate.server.features.mounts.config.faults import MountValueError
from toolgate.server.features.mounts.config.mount_config import MountLimits

VARIABLE_NAME = re.compile(r"[^=\0]+")
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")  # RFC 9110 section 5.6.2, with a limit
HEADER_VALUE = re.compile(r"[\t -~]*")  # RFC 9110 section 5.5, without what no server can read for sure
OWN_HEADERS = frozenset(  # that the client of HTTP or of MCP writes
    (
        *("host", "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *("content-length", "content-type", "content-encoding", "accept", "accept-encoding", "expect", "last-event-id"),
        *("mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name"),
    )
)
MAX_CLIENT_ID = 2_000  # characters
PREFIX = re.compile(r"[A-Za-z0-9_-]{0,32}")


def read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise MountValueError('must be a text in quotes, such as "a"')
    if "\0" in value:
        raise MountValueError("must not contain a NUL character")
    return value


def read_command(value: Any) -> str:
    word = read_text(value)
    if not word.strip():
        raise MountValueError("must be a program, such as npx or /usr/bin/python3")
    return word


def read_arguments(value: Any) -> tuple[str, ...]:
    return tuple(_read_list(value))


def read_folder(value: Any) -> Path:
    """Return an absolute path: a server may be started in any folder."""
    try:
        path = Path(read_text(value)).expanduser()
    except RuntimeError as error:  # no home
        raise MountValueError(str(error)) from None
    if not path.is_absolute():
        raise MountValueError("must be an absolute path, such as /srv/data")
    return path


def read_url(value: Any) -> str:
    """Return an http or https URL without a person's name and password. No error repeats it."""
    url = read_text(value)
    secret_references.check_url(url)
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or address
        is_valid = False
    if not is_valid or not url.isascii() or not re.fullmatch(r"[!-~]+", url):
        raise MountValueError("must be an http or https URL, such as https://example.com/mcp")
    if "@" in urlsplit(url).netloc:
        raise MountValueError("must not carry a name or a password: put them into headers, such as Authorization")
    if "#" in url:
        raise MountValueError("must have no # and what follows, which no server gets")
    return url


def read_environment(value: Any) -> Mapping[str, str]:
    texts = _read_texts(value, 'such as { TOKEN = "a" }')
    for name in texts:
        if not VARIABLE_NAME.fullmatch(name):
            raise MountValueError(f"{name!r} is not the name of a variable")
    return texts


def read_headers(value: Any) -> Mapping[str, str]:
    texts = _read_texts(value, 'such as { Authorization = "Bearer a" }')
    seen = set[str]()
    for name, text in texts.items():
        if not HEADER_NAME.fullmatch(name):
            raise MountValueError(f"{name!r} is not the name of a header")
        if not HEADER_VALUE.fullmatch(text):
            raise MountValueError(f"{name} must be of printable ASCII on one line")
        if name.lower() in OWN_HEADERS:
            raise MountValueError(f"{name} is written by Toolgate: leave it out")
        if name.lower() in seen:
            raise MountValueError(f"{name} is there twice: case does not count")
        seen.add(name.lower())
    return texts


def read_seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise MountValueError('must be a time, such as "60s" or "5m"')
    return parse_seconds(str(value))


def read_limits(value: Any) -> MountLimits:
    example = "such as { calls = 60, at_once = 4 }"
    if not isinstance(value, dict):
        raise MountValueError(f"must be a table of numbers, {example}")
    for name, number in value.items():
        if name not in MountLimits.__struct_fields__:
            known = " and ".join(MountLimits.__struct_fields__)
            raise MountValueError(f"{name!r} is no limit: {known} are{suggest(name, MountLimits.__struct_fields__)}")
        if type(number) is not int or not 0 < number < 2**31:
            raise MountValueError(f"{name} must be a whole number from 1 on, {example}")
    return MountLimits(**value)


def read_patterns(value: Any) -> tuple[str, ...]:
    patterns = tuple(map(parse_pattern, _read_list(value)))
    check_order(patterns)
    return patterns


def read_prefix(value: Any) -> str:
    prefix = read_text(value)
    if not PREFIX.fullmatch(prefix):
        raise MountValueError('must be at most 32 letters, digits, "_" and "-", or "" for names without a prefix')
    return prefix


def read_scope(value: Any) -> str:
    scope = read_text(value)
    if not SCOPE_PATTERN.fullmatch(scope):
        raise MountValueError("must be one OAuth scope, such as tools:plugins: ASCII without spaces")
    return scope


def read_scopes(value: Any) -> tuple[str, ...]:
    return tuple(read_scope(each) for each in _read_list(value))


def read_client_id(value: Any) -> str:
    word = read_audience(value)
    if not word:
        raise MountValueError("must be the id of a client, of printable ASCII")
    return word


def read_audience(value: Any) -> str:
    word = read_text(value)
    secret_references.refuse_references(word)
    if len(word) > MAX_CLIENT_ID or not word.isascii() or not word.isprintable():
        raise MountValueError("must be of printable ASCII, such as an id or a URL")
    return word


def read_token_url(value: Any) -> str:
    """Return the URL that gets a client's secret."""
    from toolgate.server.cli.mcp_client.foreign_urls import is_secure_url  # start-up: few mounts have one

    url = read_text(value)
    secret_references.refuse_references(url)
    if not is_secure_url(url):
        raise MountValueError("must be an https URL, or http on this machine, such as https://auth.example.com/token")
    return url


def read_truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise MountValueError("must be true or false")
    return value


def read_word(*words: str) -> Callable[[Any], str]:
    """Return a reader that accepts one of these words."""
    parse = one_of(*words)
    return lambda value: parse(read_text(value))


def _read_list(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise MountValueError('must be a list of texts, such as ["a", "b"]')
    return [read_text(each) for each in value]


def _read_texts(value: Any, example: str) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise MountValueError(f"must be a table of texts, {example}")
    for name, text in value.items():
        if not isinstance(text, str):
            raise MountValueError(f"{name} must be a text in quotes, {example}")
        read_text(text)
    return value
