"""Decide whether a call may run: by the rules, the caller's names, approvals and the rate limit."""

import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from toolgate.server.policy.rate_limit import ANY, CallRateLimiter
from toolgate.server.policy.rules import Rule, RuleCaller, Rules, Verdict
from toolgate.server.protocol.errors import InvalidRequest
from toolgate.server.state.sealed_state import LIFETIME

if TYPE_CHECKING:
    from toolgate.server.policy.remembered_approvals import RememberedApprovals
    from toolgate.server.protocol.session import Call, Session
    from toolgate.tools.api.tool import Tool

MAX_OPEN = 64  # open nonces per principal: a person has fewer questions open


class Nonces:
    """Nonces in memory, each valid once, for `lifetime` seconds and one principal; above `most`, its oldest ends."""

    def __init__(self, lifetime: float = LIFETIME, most: int = MAX_OPEN, now: Callable[[], float] = monotonic) -> None:
        self._lifetime = lifetime
        self._most = most
        self._now = now
        self._open: dict[str, OrderedDict[str, float]] = {}  # principal → nonce → expiry, oldest first

    def issue(self, principal: str) -> str:
        """Return a new nonce for this principal."""
        self._drop_expired()
        own = self._open.setdefault(principal, OrderedDict())
        while len(own) >= self._most:
            own.popitem(last=False)
        nonce = secrets.token_urlsafe(18)
        own[nonce] = self._now() + self._lifetime
        return nonce

    def redeem(self, principal: str, nonce: str) -> bool:
        """Use up the nonce; return whether it was valid and this principal's."""
        own = self._open.get(principal)
        until = own.pop(nonce, None) if own is not None else None
        return until is not None and self._now() < until

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def _drop_expired(self) -> None:
        now = self._now()
        for principal, own in list(self._open.items()):
            while own and next(iter(own.values())) <= now:
                own.popitem(last=False)
            if not own:
                del self._open[principal]


async def own_name_only(principal: str) -> frozenset[str]:
    """Return the principal's own name, which needs no look-up in the state."""
    return frozenset((principal,))


class CallPolicy(msgspec.Struct):
    """What applies to all calls of a server. `find_names(principal)` returns all names that rules may use for a
    principal. `limiter` is None without a limit."""

    rules: Rules = msgspec.field(default_factory=Rules)
    find_names: Callable[[str], Awaitable[frozenset[str]]] = own_name_only
    limiter: CallRateLimiter | None = None
    nonces: Nonces = msgspec.field(default_factory=Nonces)  # for approvals
    remembered: "RememberedApprovals | None" = None  # approvals for longer than one call

    async def verdict(self, session: "Session", tool: "Tool", values: Mapping[str, Any]) -> tuple[Verdict, Rule | None]:
        """Return the verdict on a call of `tool`, and the rule behind it. Raises StateError."""
        return self.rules.verdict(tool, values, RuleCaller(await self.find_names(session.principal), session))

    def count_call(self, call: "Call", scope: str) -> str | None:
        """Count a call, and return why it is refused, or None."""
        refusal = None if self.limiter is None else self.limiter.count(call.session.principal, scope)
        if refusal is not None:
            call.decision = "limited"
        return refusal

    def require_rate(self, call: "Call", scope: str = ANY) -> None:
        """Count a request whose result can't carry a refusal. Raises InvalidRequest if it is one too many."""
        refusal = self.count_call(call, scope)
        if refusal is not None:
            raise InvalidRequest(refusal)
