"""Decide which scopes a request gets, and whether a resource is this server."""

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from toolgate.server.auth.clients.model import OAuthClient
from toolgate.server.config.transports import PATHS

OFFLINE = "offline_access"
IDENTITY = frozenset(("openid", "profile", "email", "address", "phone", OFFLINE))  # asked out of habit; nothing of ours
LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
PORTS = {"http": 80, "https": 443}


def scopes_for(client: OAuthClient, asked: str | None, served: Sequence[str]) -> tuple[str, ...]:
    """The scopes a person is asked for: of those asked the ones that there are, of none asked all the client may have.
    Empty when nothing asked can be had. `offline_access` stays, where it was asked for."""
    limited = client.kind == "configured" and client.scopes is not None
    most = [scope for scope in served if scope in (client.scopes or ())] if limited else list(served)
    words = frozenset((asked or "").split())
    if words - IDENTITY:
        allowed = [scope for scope in most if scope in words]
    else:
        allowed = [scope for scope in most if client.scopes is None or scope in client.scopes] or most
    return (*allowed, OFFLINE) if allowed and OFFLINE in words else tuple(allowed)


def is_own_resource(resources: Iterable[str], public_url: str) -> bool:
    """Whether all of `resources` mean this server, as loosely as clients write it: either transport or none, the bare
    origin, a trailing slash, another case of the host, the default port, another name of loopback."""
    base = _parts(public_url)
    assert base is not None
    scheme, host, port, prefix = base
    paths = {"", *(prefix + path for path in ("", *PATHS))}
    return all(_parts(each) in {(scheme, host, port, path) for path in paths} for each in resources)


def _parts(url: str) -> tuple[str, str, int | None, str] | None:
    """Scheme, host, port and path; None for what is no plain URL."""
    if not url.isascii() or not url.isprintable() or {"#", "?", "\\"} & set(url):  # first: urlsplit normalises the rest
        return None
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        return None
    if "@" in parts.netloc:
        return None
    known = "localhost" if host in LOOPBACK else host
    return parts.scheme, known, port or PORTS.get(parts.scheme), parts.path.rstrip("/")
