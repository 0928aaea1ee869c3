"""Give the requests of a mount the token of its owner, asked for before it ends: once for all who wait.

A token of the team's secret is the team's, by the operator's word. Any other is one person's, and no one else's
request carries it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol
from urllib.parse import urlsplit

from toolgate.server.base.text import to_line
from toolgate.server.cli.mcp_client.challenge import parse_challenge
from toolgate.server.features.mounts.grants.token_endpoint import GivenToken
from toolgate.server.features.mounts.kept_secrets.resolver import ResolvedMount
from toolgate.server.features.mounts.sign_in.requests import NotSentError, RefusedError, shorten
from toolgate.server.features.mounts.sign_in.store import SignInFault
from toolgate.server.features.mounts.upstream.errors import MountError, UpstreamFault, hide_secrets

MAX_OWNERS = 10_000  # whose tokens are in memory
ASK_WITHIN = 50.0  # seconds
PAUSE = 5.0  # seconds after a failure in which nothing is asked again
MAX_SHOWN = 300  # characters of what a server says
REMEDIES = {
    "invalid_client": "check client_id and client_secret",
    "unauthorized_client": "have the client allowed this grant there",
    "invalid_scope": "check scopes",
    "invalid_target": "check audience",
    "invalid_grant": "ask its operator whether you may use it, or check client_id",
}


class TokenGrant(Protocol):
    """A way to get a token. `place` names the host that gives it."""

    @property
    def place(self) -> str: ...

    async def ask(self, mount: ResolvedMount) -> GivenToken:
        """Return a new token for the mount's owner. Raises SignInFault, MountError."""
        ...


class GrantedTokens:
    """The tokens of one mount."""

    def __init__(
        self,
        grant: TokenGrant,
        now: Callable[[], float] = time.monotonic,
        within: float = ASK_WITHIN,
        most: int = MAX_OWNERS,
    ) -> None:
        self._grant = grant
        self._now = now
        self._within = within
        self._most = most
        self._owners: dict[str, OwnerTokens] = {}

    def for_mount(self, mount: ResolvedMount) -> "OwnerTokens":
        """Return the tokens of the mount's owner. A token of another secret is another one."""
        found = self._owners.pop(mount.owner, None)
        if found is None or found.mount.config != mount.config:
            found = OwnerTokens(mount, self._grant, self._now, self._within)
        if len(self._owners) >= self._most:
            del self._owners[next(iter(self._owners))]
        self._owners[mount.owner] = found
        return found

    def list_recent(self, principal: str) -> Sequence[str]:
        """Return the tokens that a principal's requests carry, which are not repeated to anybody."""
        owners = (self._owners.get(owner) for owner in {"", principal})
        return [owner.recent for owner in owners if owner is not None and owner.recent]


class OwnerTokens:
    """The token of one owner, which requests to one mount carry."""

    def __init__(self, mount: ResolvedMount, grant: TokenGrant, now: Callable[[], float], within: float) -> None:
        self.mount = mount
        self.recent = ""
        self._grant = grant
        self._now = now
        self._within = within
        self._turn = asyncio.Lock()
        self._renew_at = self._ends_at = 0.0
        self._fault: UpstreamFault | None = None
        self._paused_until = 0.0

    async def find(self) -> str:
        """Return the token. Raises MountError."""
        return self.recent if self._now() < self._renew_at else await self._ask_in_turn("")

    async def renew(self, rejected: str) -> str:
        """Return another token than the one that was rejected. Raises MountError."""
        return await self._ask_in_turn(rejected)

    async def refuse_scope(self, token: str, challenge: str) -> MountError:
        """Return the error of a request whose token has too few scopes."""
        wanted = to_line(parse_challenge(challenge).get("scope", ""), MAX_SHOWN)
        more = f": {wanted}" if wanted else ""
        return MountError("TOKEN_REFUSED", f"it wants more rights{more}; write scopes in {self._table} that have them")

    async def refuse_token(self, token: str) -> MountError:
        """Return the error of a request whose token is rejected, though it is another one."""
        self._drop(token)
        return self._note_fault(
            MountError("TOKEN_REFUSED", f"it rejects what {self._grant.place} gives; {self._check}")
        )

    def note_accepted(self) -> None:
        """Nothing follows: a token that is rejected is asked for again after a pause."""

    @property
    def _table(self) -> str:
        return f"[mounts.{self.mount.config.name}]"

    @property
    def _check(self) -> str:
        return f"check audience and scopes of {self._table}"

    async def _ask_in_turn(self, rejected: str) -> str:
        """Return a token that is good still, or a new one. Raises MountError."""
        async with self._turn:
            self._drop(rejected)
            if self._now() < self._renew_at:
                return self.recent  # another request has asked meanwhile
            if self._fault is None or self._now() >= self._paused_until:
                await self._ask(rejected)
            if self._now() < self._ends_at:
                return self.recent
            assert self._fault is not None  # since nothing was given
            raise self._fault.create_error()

    async def _ask(self, rejected: str) -> None:
        """Take a new token, or note why there is none. Raises MountError."""
        try:
            async with asyncio.timeout(self._within):
                given = await self._grant.ask(self.mount)
        except TimeoutError:
            self._note_fault(MountError("CONNECT_FAILED", f"{self._grant.place} gives no token in {self._within:g} s"))
            return
        except SignInFault as error:
            self._note_fault(self._describe(error))
            return
        if given.text == rejected:
            again = f"{self._grant.place} gives the token again that it rejects; {self._check}"
            self._note_fault(MountError("TOKEN_REFUSED", again))
            return
        self._take(given)

    def _take(self, given: GivenToken) -> None:
        now, never = self._now(), float("inf")
        self.recent, self._fault = given.text, None
        self._renew_at = never if given.lasts is None else now + shorten(given.lasts)
        self._ends_at = never if given.lasts is None else now + given.lasts

    def _drop(self, token: str) -> None:
        if token and token == self.recent:
            self._renew_at = self._ends_at = 0.0

    def _note_fault(self, error: MountError) -> MountError:
        """Ask nothing for a moment: what failed would fail again, for each request that comes."""
        self._fault, self._paused_until = error.fault, self._now() + PAUSE
        return error

    def _describe(self, error: SignInFault) -> MountError:
        query = urlsplit(self.mount.config.token_url).query  # it may be a key
        said = hide_secrets(error.text, [*self.mount.values, self.recent, query])
        if isinstance(error, NotSentError):
            return MountError("CONNECT_FAILED", f"{self._grant.place} gives no token now: {said}")
        remedy = REMEDIES.get(error.error, "") if isinstance(error, RefusedError) else ""
        check = f"; {remedy} of {self._table}" if remedy else ""
        return MountError("TOKEN_REFUSED", f"{self._grant.place} gives no token: {said}{check}")
