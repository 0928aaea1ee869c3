"""Define the limits of a fetch and its errors."""

from collections.abc import Awaitable, Callable, Sequence

from toolgate.tools.api.errors import ToolError

MAX_URL = 8_000  # characters; the most that servers and browsers accept
MAX_SHORT = 200  # characters of a URL in an error text
BROKE_OFF = "it broke off: read as far as it came"
REDIRECTS = frozenset({301, 302, 303, 307, 308})

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]  # (host, port) -> addresses; raises OSError


class PageUnreachableError(ToolError):
    """The page could not be fetched: name, connection, TLS, protocol, or too many redirects."""


class PageTimeoutError(PageUnreachableError):
    """The page did not arrive in time."""


class PageTlsError(PageUnreachableError):
    """The handshake of TLS failed, or the certificate is not trusted or is another host's."""


class AddressRefusedError(ToolError):
    """The address is refused; the text names it and the option that decides."""


def shorten_url(url: str) -> str:
    """Return a URL for an error text: one line, not too long."""
    line = "".join(character if character.isprintable() else "?" for character in url[:MAX_SHORT])
    return line if len(url) <= MAX_SHORT else f"{line}…"
