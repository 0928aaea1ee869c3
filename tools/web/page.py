"""Hold the limits of a fetch and its errors."""

from collections.abc import Awaitable, Callable, Sequence

from toolgate.tools.api.errors import ToolError

MAX_URL = 8_000  # characters; what servers and browsers take at most
REDIRECTS = frozenset({301, 302, 303, 307, 308})

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]  # (host, port) -> addresses; raises OSError


class PageUnreachableError(ToolError):
    """The page could not be had: the name, the connection, TLS, the protocol, or too many redirects."""


class PageTimeoutError(PageUnreachableError):
    """It did not come in time."""


class AddressRefusedError(ToolError):
    """The address is not one that may be reached; the text names it and the option that decides."""


def shorten_url(url: str) -> str:
    """A URL for an error text: one line, not too long."""
    line = "".join(character if character.isprintable() else "?" for character in url)
    return line if len(line) <= 200 else f"{line[:200]}…"
