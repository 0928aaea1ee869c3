"""Read an OAuth request's parameters, choose its scopes, and describe errors in fixed sentences.

Authlib's own texts repeat the input, so `DESCRIPTIONS` replaces them. No answer repeats input, except `state`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import parse_qsl, urlsplit

from toolgate.server.auth.clients.model import OAuthClient
from toolgate.server.auth.oauth_server.authlib import BasicOAuth2Payload, OAuth2Error, OAuth2Request
from toolgate.server.base.principals.scopes import OFFLINE
from toolgate.server.config.transports import PATHS

MAX_QUERY = 4 * 1024  # bytes of an authorization request: it is sealed into URLs, of which proxies accept 8 KiB
MAX_PAIRS = 64
REPEATABLE = frozenset(("resource",))  # RFC 8707 section 2
IDENTITY = frozenset(("openid", "profile", "email", "address", "phone", OFFLINE))  # requested by habit, not needed
LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
PORTS = {"http": 80, "https": 443}

DESCRIPTIONS: Mapping[str, str] = {
    "access_denied": "The person did not approve the request.",
    "invalid_client": "The client is unknown, or its credentials are wrong.",
    "invalid_client_metadata": "The client metadata can't be used.",
    "invalid_grant": "The code, token or assertion is invalid, expired, already used, or belongs to another client.",
    "invalid_request": "A parameter is missing, repeated or malformed.",
    "invalid_scope": "None of these scopes is available, or they exceed what was granted.",
    "invalid_target": "This server issues tokens for its own resource only.",
    "request_not_supported": "Request objects are not supported.",
    "request_uri_not_supported": "Request objects are not supported.",
    "temporarily_unavailable": "The server can't do this now. Try again later.",
    "unauthorized_client": "The client is not allowed to do this.",
    "unsupported_grant_type": "This grant type is not supported.",
    "unsupported_response_type": "Only response_type=code is supported.",
    "too_many_requests": "There are too many requests. Try again later.",
}


class OAuthRequestError(OAuth2Error):  # type: ignore[misc]  # Authlib has no types
    """An error with our own sentence."""

    def __init__(self, error: str, description: str | None = None, *, redirect_uri: str | None = None) -> None:
        sentence = DESCRIPTIONS[error] if description is None else description
        super().__init__(error=error, description=sentence, redirect_uri=redirect_uri)


def describe(error: OAuth2Error) -> str:
    """Return the sentence for any of Authlib's errors."""
    if isinstance(error, OAuthRequestError):
        return str(error.description)
    return DESCRIPTIONS.get(str(error.error), DESCRIPTIONS["invalid_request"])


def parse_query(query: str) -> list[tuple[str, str]]:
    """Return the parameters of a raw query. Raises ValueError if it is too long or not UTF-8."""
    if len(query.encode()) > MAX_QUERY:
        raise ValueError("too long")
    return parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=MAX_PAIRS)


class OAuthRequest(OAuth2Request):  # type: ignore[misc]  # as above
    """A request as Authlib reads it. A parameter without a value counts as missing (RFC 6749 section 3.1).

    It has no URL of its own: nothing is derived from one.
    """

    def __init__(self, method: str, pairs: Iterable[tuple[str, str]], headers: Mapping[str, str]) -> None:
        super().__init__(method, "https://issuer.invalid/", None, {name.lower(): headers[name] for name in headers})
        sent = [(name, value) for name, value in pairs if value]
        self._names = Counter(name for name, _ in sent if name not in REPEATABLE)
        self.is_readable = all(_is_readable(name) and _is_readable(value) for name, value in sent)
        self.resources = [value for name, value in sent if name == "resource"]
        self._form = dict(sent)
        self.payload = BasicOAuth2Payload(self._form)

    @property
    def args(self) -> dict[str, str]:
        return self._form

    @property
    def form(self) -> dict[str, str]:
        return self._form

    def is_repeated(self, name: str) -> bool:
        return self._names[name] > 1

    def check(self) -> None:
        """Raise OAuthRequestError if a parameter is repeated or not text."""
        if len(self.resources) > MAX_PAIRS or any(times > 1 for times in self._names.values()):
            raise OAuthRequestError("invalid_request", "A parameter is repeated.")
        if not self.is_readable:
            raise OAuthRequestError("invalid_request", "A parameter is not valid UTF-8.")


def _is_readable(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


def scopes_for(client: OAuthClient, asked: str | None, served: Sequence[str]) -> tuple[str, ...]:
    """Return the scopes to ask a person for: the requested ones that exist, or without requested ones all that the
    client may have. It is empty if none is available. A requested `offline_access` stays."""
    limited = client.kind == "configured" and client.scopes is not None
    most = [scope for scope in served if scope in (client.scopes or ())] if limited else list(served)
    words = frozenset((asked or "").split())
    if words - IDENTITY:
        allowed = [scope for scope in most if scope in words]
    else:
        allowed = [scope for scope in most if client.scopes is None or scope in client.scopes] or most
    return (*allowed, OFFLINE) if allowed and OFFLINE in words else tuple(allowed)


def is_own_resource(resources: Iterable[str], public_url: str) -> bool:
    """Return whether all of `resources` name this server, in any way clients write it: either transport or none, the
    bare origin, a trailing slash, the host in another case, the default port, another loopback name."""
    base = _parts(public_url)
    assert base is not None
    scheme, host, port, prefix = base
    paths = {"", *(prefix + path for path in ("", *PATHS))}
    return all(_parts(each) in {(scheme, host, port, path) for path in paths} for each in resources)


def _parts(url: str) -> tuple[str, str, int | None, str] | None:
    """Return scheme, host, port and path, or None for an unusual URL."""
    if not url.isascii() or not url.isprintable() or {"#", "?", "\\"} & set(url):  # first: urlsplit would hide these
        return None
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        return None
    if "@" in parts.netloc:
        return None
    name = "localhost" if host in LOOPBACK else host
    return parts.scheme, name, port or PORTS.get(parts.scheme), parts.path.rstrip("/")
