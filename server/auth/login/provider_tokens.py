"""Define what this server gets from an identity provider: its registration there, and the tokens of a sign-in.

A feature may keep the tokens, to ask the provider for further tokens in the person's name.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from toolgate.server.auth.login.accounts import Person


class ProviderTokens(msgspec.Struct, frozen=True):
    """The tokens of one sign-in. They are sent to their provider alone, or where the operator says. `expires_at`: the
    end of the ID token, in seconds since 1970; `refresh_token` may be ""."""

    id_token: str
    refresh_token: str
    expires_at: float


class ClientRegistration(msgspec.Struct, frozen=True):
    """This server's registration at an identity provider. `methods`: the ways in which a client may send its secret
    there. `revocation_endpoint`: "" for a provider without one (RFC 7009)."""

    token_endpoint: str
    id: str
    secret: str
    methods: Sequence[str]
    revocation_endpoint: str = ""


class TokenKeeper(Protocol):
    """Keeps the tokens of sign-ins, while a feature needs them."""

    @property
    def wants_tokens(self) -> bool: ...

    async def keep(self, person: Person, tokens: ProviderTokens) -> None: ...
