"""Hold what an identity provider gives with a sign-in, for whoever asks it for more in the person's name later."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from toolgate.server.auth.login.accounts import Person


class ProviderTokens(msgspec.Struct, frozen=True):
    """The tokens of one sign-in. They go to their provider alone, or where the operator says. `expires_at`: the end of
    the ID token, in seconds since 1970; `refresh_token` may be ""."""

    id_token: str
    refresh_token: str
    expires_at: float


class ClientRegistration(msgspec.Struct, frozen=True):
    """What this server is at an identity provider. `methods`: how a client may show its secret there.
    `revocation_endpoint`: "" for a provider without one (RFC 7009)."""

    token_endpoint: str
    id: str
    secret: str
    methods: Sequence[str]
    revocation_endpoint: str = ""


class TokenKeeper(Protocol):
    """Keeps the tokens of sign-ins, while something needs them."""

    @property
    def wants_tokens(self) -> bool: ...

    async def keep(self, person: Person, tokens: ProviderTokens) -> None: ...
