"""Hold the URL of a Redis or Valkey server, and keep its password out of texts."""

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

SCHEMES = ("redis", "rediss", "unix")
QUERY = ("db", "ssl_")  # the options of a URL; others would change how replies are read
DEFAULT_PORT = 6379


class RedisUrl(msgspec.Struct, frozen=True):
    """The URL of a server. As text it is the address alone. `file`: where it was read from, or None."""

    secret: str
    address: str
    file: Path | None = None

    def __str__(self) -> str:
        return self.address

    __repr__ = __str__


def parse_redis_url(url: str, file: Path | None = None) -> RedisUrl:
    """Return the URL. Raises ValueError, which completes "the URL of Redis" and repeats no secret."""
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORT
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        raise ValueError("is invalid: it must be redis://:PASSWORD@HOST:PORT, with %2F for / in the password") from None
    if parts.scheme not in SCHEMES:
        raise ValueError("must begin with redis://, rediss:// or unix://")
    if unknown := [name for name in options if not name.startswith(QUERY)]:
        raise ValueError(f"has an unknown option: {unknown[0][:20]}")
    if parts.scheme == "unix":
        if not parts.path:
            raise ValueError("has no path: unix:///PATH")
        return RedisUrl(url, parts.path, file)
    if not parts.hostname:
        raise ValueError(f"has no host: {parts.scheme}://HOST:{DEFAULT_PORT}")
    if not re.fullmatch(r"(/[0-9]*)?", parts.path):
        raise ValueError(f"has no number of a database: {parts.scheme}://HOST:{DEFAULT_PORT}/0")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return RedisUrl(url, f"{host}:{port}", file)
