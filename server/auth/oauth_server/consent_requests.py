"""Seal authorization requests that wait for a person's consent.

The sealed request is its own id. So sending one stores nothing, and no request displaces another.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from toolgate.server.auth.clients.model import OAuthClient
from toolgate.server.auth.clients.redirect_uris import display_host
from toolgate.server.protocol.errors import InvalidParams
from toolgate.server.state.grant_rows import hash_secret
from toolgate.server.state.sealed_state import Sealer

LIFETIME = 600.0  # seconds: a person signs in, finds the password, reads
PURPOSE = "authorization request"


@dataclass(frozen=True, slots=True)
class ConsentRequest:
    """What a person is to be asked, for the consent page. Answered once, within ten minutes.

    `scopes` is what was asked and is served, in the order they are shown; with none asked, all that are served.
    `resource` is the canonical one. `client` is the one that asks: `.name`, `.id`, `.kind`, `.host` (None:
    the name is self-asserted), `.loopback_only`.
    """

    id: str
    client: OAuthClient
    redirect_uri: str
    scopes: tuple[str, ...]
    resource: str
    state: str | None
    expires_at: float  # seconds since the epoch

    @property
    def redirect_host(self) -> str:
        """Where the code goes, as a person reads it: a host with its port, or a scheme's own application."""
        return display_host(self.redirect_uri)


@dataclass(frozen=True, slots=True)
class SealedConsent:
    """`id` is the question's, `query` the request as it came, `mark` what its answer is remembered by until
    `expires_at` (seconds since the epoch)."""

    id: str
    query: str
    mark: str
    expires_at: float


class ConsentRequests:
    """`seal` is one that lasts, of its own key file. Processes of one state and `public_url` read each other's."""

    def __init__(self, seal: Sealer, public_url: str, now: Callable[[], float] = time.time) -> None:
        self._seal = seal
        self._public_url = public_url
        self._now = now

    def seal(self, query: str) -> tuple[str, float]:
        """A new question's id, of URL-safe characters, a third longer than the query; and when it expires."""
        until = self._now() + LIFETIME
        sealed = self._seal.seal([query, secrets.token_urlsafe(16), until], PURPOSE, self._public_url)
        return sealed.rstrip("="), until

    def open(self, id: str) -> SealedConsent | None:
        """None for what was not sealed here, was changed, or has expired."""
        try:
            query, name, until = self._seal.unseal(id + "=" * (-len(id) % 4), PURPOSE, self._public_url)
        except InvalidParams:
            return None
        return SealedConsent(id, query, hash_secret(f"question\n{name}"), until) if self._now() < until else None
