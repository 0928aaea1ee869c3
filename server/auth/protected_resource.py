"""Describe this server as an OAuth protected resource: names, metadata and challenges.

All URLs come from the configured public URL, never from a request. Source: RFC 9728; RFC 6750 section 3; MCP 2026-07-28
basic/authorization.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

from toolgate.server.base.principals import scopes
from toolgate.server.config.transports import PATHS

WELL_KNOWN = "/.well-known/oauth-protected-resource"


class ProtectedResource:
    """The protected resource at `public_url`, with tokens from `issuer`. `served()` returns the scopes served; `paths`
    are its transports', the first stands for the whole server."""

    def __init__(
        self,
        public_url: str,
        issuer: str,
        served: Callable[[], Sequence[str]],
        *,
        name: str = "Toolgate",
        paths: Sequence[str] = PATHS,
    ) -> None:
        self.public_url = public_url.rstrip("/")
        self.issuer = issuer
        self.served = served
        self.name = name
        self.paths = tuple(paths)
        parts = urlsplit(self.public_url)
        self._origin, self._prefix = f"{parts.scheme}://{parts.netloc}", parts.path

    @property
    def audience(self) -> tuple[str, ...]:
        """Return the audiences that tokens may name: one for a transport is valid on all. Our tokens name the first."""
        return tuple(self.public_url + path for path in PATHS)

    def metadata(self, path: str) -> dict[str, Any]:
        """Return the metadata for the transport at `path`. Its `resource` is the URL a person typed: some clients
        insist on it."""
        return {
            "resource": self.public_url + path,
            "authorization_servers": [self.issuer],
            "scopes_supported": list(self.served()),
            "bearer_methods_supported": ["header"],
            "resource_name": self.name,
        }

    def metadata_url(self, path: str) -> str:
        """Return the URL of the metadata: the well-known part goes between host and path (RFC 9728 section 3.1)."""
        return f"{self._origin}{WELL_KNOWN}{self._prefix}{path}"

    def metadata_paths(self) -> dict[str, str]:
        """Return each path of the metadata → its transport. There are paths at the root, with the transport's path
        inserted and appended, each with and without the public URL's prefix, which a proxy may remove."""
        paths = {WELL_KNOWN: self.paths[0]}
        for path in self.paths:
            for prefix in {"", self._prefix}:
                paths[f"{WELL_KNOWN}{prefix}{path}"] = path
                paths[f"{prefix}{path}{WELL_KNOWN}"] = path
        for wild in {self._prefix + WELL_KNOWN, WELL_KNOWN + self._prefix}:
            paths.setdefault(wild, self.paths[0])
        return paths

    def challenge(
        self, path: str, wanted: Iterable[str] | None = None, error: str | None = None, description: str | None = None
    ) -> str:
        """Return the value of WWW-Authenticate. `wanted` are the scopes to request; by default all, because hosted
        clients read them once. `error` is only for requests with a token (RFC 6750 section 3.1)."""
        members = {
            "error": error,
            "error_description": description,
            "resource_metadata": self.metadata_url(path),
            "scope": scopes.format_scopes(self.served() if wanted is None else wanted),
        }
        return "Bearer " + ", ".join(f'{name}="{_quotable(value)}"' for name, value in members.items() if value)


def _quotable(value: str) -> str:
    """Return the text without what could end a quoted string. It is our own, so nothing is lost."""
    return "".join(character for character in value if character.isascii() and character.isprintable()).translate(
        {ord('"'): None, ord("\\"): None}
    )
