"""Describe this server as an OAuth protected resource: its names, its metadata and its challenges.

All URLs come from the one public URL that was configured, never from a request.
Source: RFC 9728; RFC 6750 section 3; MCP 2026-07-28 basic/authorization.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

from toolgate.server.auth import scopes
from toolgate.server.config.transports import PATHS

WELL_KNOWN = "/.well-known/oauth-protected-resource"


class ProtectedResource:
    """The protected resource at `public_url`, whose tokens come from `issuer`. `served()` gives the scopes there are;
    `paths` are those of its transports, the one that stands for the whole first."""

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
        """What tokens for it may name: one for a transport is good on all. The first is the one we mint."""
        return tuple(self.public_url + path for path in PATHS)

    def metadata(self, path: str) -> dict[str, Any]:
        """The document about the transport at `path`. `resource` is what a person typed: some clients insist on it."""
        return {
            "resource": self.public_url + path,
            "authorization_servers": [self.issuer],
            "scopes_supported": list(self.served()),
            "bearer_methods_supported": ["header"],
            "resource_name": self.name,
        }

    def metadata_url(self, path: str) -> str:
        """Where that document is: the well-known part goes between host and path (RFC 9728 section 3.1)."""
        return f"{self._origin}{WELL_KNOWN}{self._prefix}{path}"

    def metadata_paths(self) -> dict[str, str]:
        """Where documents are asked for → the transport each is about: at the root, with the path inserted, and
        appended; with the public URL's prefix and, since a proxy may have taken it off, without."""
        found = {WELL_KNOWN: self.paths[0]}
        for path in self.paths:
            for prefix in {"", self._prefix}:
                found[f"{WELL_KNOWN}{prefix}{path}"] = path
                found[f"{prefix}{path}{WELL_KNOWN}"] = path
        for wild in {self._prefix + WELL_KNOWN, WELL_KNOWN + self._prefix}:
            found.setdefault(wild, self.paths[0])
        return found

    def challenge(
        self, path: str, wanted: Iterable[str] | None = None, error: str | None = None, description: str | None = None
    ) -> str:
        """The value of WWW-Authenticate. `wanted` are the scopes to ask for: all there are unless it is given, since
        hosted clients read them once. `error` belongs in it only when a token was sent (RFC 6750 section 3.1)."""
        members = {
            "error": error,
            "error_description": description,
            "resource_metadata": self.metadata_url(path),
            "scope": scopes.format_scopes(self.served() if wanted is None else wanted),
        }
        return "Bearer " + ", ".join(f'{name}="{_quotable(value)}"' for name, value in members.items() if value)


def _quotable(value: str) -> str:
    """Nothing that could end the quoted string: what is told are our own words and URLs, so that nothing is lost."""
    return "".join(character for character in value if character.isascii() and character.isprintable()).translate(
        {ord('"'): None, ord("\\"): None}
    )
