"""Hold what decides whether a call may run: rules, the names they know callers by, approvals and the limit on calls."""

import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from toolgate.server.policy.rate_limit import ANY, CallRateLimiter
from toolgate.server.policy.rules import Rule, RuleCaller, Rules, Verdict
from toolgate.server.protocol.errors import InvalidRequest
from toolgate.server.state.sealed_state import LIFETIME

if TYPE_CHECKING:
    from toolgate.server.protocol.session import Call, Session
    from toolgate.tools.api.tool import Tool

MAX_OPEN = 64  # open nonces of a principal: no person has as many questions before them


class Nonces:
    """Nonces in memory, each good once, for `lifetime` seconds and for one principal. One more than `most` of a
    principal ends the oldest of that principal."""

    def __init__(
        self, lifetime: float = LIFETIME, most: int = MAX_OPEN, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._lifetime = lifetime
        self._most = most
        self._now = now
        self._open: dict[str, OrderedDict[str, float]] = {}  # principal → nonce → until when; the oldest first

    def issue(self, principal: str) -> str:
        """Return a new nonce of this principal."""
        self._drop_expired()
        own = self._open.setdefault(principal, OrderedDict())
        while len(own) >= self._most:
            own.popitem(last=False)
        nonce = secrets.token_urlsafe(18)
        own[nonce] = self._now() + self._lifetime
        return nonce

    def redeem(self, principal: str, nonce: str) -> bool:
        """Whether the nonce is this principal's and still good. It is used up by this."""
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
    """Return the one name that a principal has without a look into the state: its own."""
    return frozenset((principal,))


@dataclass(slots=True)
class CallPolicy:
    """`find_names(principal)` gives all names that rules may call a principal by. `limiter` is None without a limit."""

    rules: Rules = field(default_factory=Rules)
    find_names: Callable[[str], Awaitable[frozenset[str]]] = own_name_only
    limiter: CallRateLimiter | None = None
    nonces: Nonces = field(default_factory=Nonces)  # of approvals

    async def verdict(
        self, session: "Session", tool: "Tool", arguments: Mapping[str, Any]
    ) -> tuple[Verdict, Rule | None]:
        """Return what becomes of a call of `tool`, and the rule that says so. Raises StateError."""
        return self.rules.verdict(tool, arguments, RuleCaller(await self.find_names(session.principal), session))

    def count_call(self, call: "Call", scope: str) -> str | None:
        """Count a call; return why it is one too many, or None."""
        refusal = None if self.limiter is None else self.limiter.count(call.session.principal, scope)
        if refusal is not None:
            call.decision = "limited"
        return refusal

    def require_rate(self, call: "Call", scope: str = ANY) -> None:
        """Count a call whose result has no place for a refusal. Raises InvalidRequest when it is one too many."""
        refusal = self.count_call(call, scope)
        if refusal is not None:
            raise InvalidRequest(refusal)
