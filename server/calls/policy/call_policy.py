"""Decide whether a call may run: by the rules, the caller's names, approvals and the rate limit."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from toolgate.server.base.limits.rate_limit import ANY, CallRateLimiter
from toolgate.server.calls.policy.rules import Rule, RuleCaller, Rules, Verdict
from toolgate.server.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from toolgate.server.calls.policy.nonces import Nonces
    from toolgate.server.calls.policy.remembered_approvals import RememberedApprovals
    from toolgate.server.protocol.session import Call, Session
    from toolgate.tools.api.tool import Tool


async def own_name_only(principal: str) -> frozenset[str]:
    """Return the principal's own name, which needs no look-up in the state."""
    return frozenset((principal,))


class CallPolicy(msgspec.Struct):
    """What applies to all calls of a server. `find_names(principal)` returns all names that rules may use for a
    principal. `limiter` counts calls; None: they have no limit."""

    rules: Rules = msgspec.field(default_factory=Rules)
    find_names: Callable[[str], Awaitable[frozenset[str]]] = own_name_only
    limiter: CallRateLimiter | None = None
    nonces: "Nonces | None" = None  # for approvals
    remembered: "RememberedApprovals | None" = None  # approvals for longer than one call

    async def verdict(self, session: "Session", tool: "Tool", values: Mapping[str, Any]) -> tuple[Verdict, Rule | None]:
        """Return the verdict on a call of `tool`, and the rule behind it. Raises StateError."""
        return self.rules.verdict(tool, values, RuleCaller(await self.find_names(session.principal), session))

    async def require_rate(self, call: "Call", scope: str = ANY) -> None:
        """Count a request whose result can't carry a refusal. Raises InvalidRequest if it is one too many."""
        if self.limiter is not None:
            refusal = await self.limiter.admit(call.session.principal, scope)
            if refusal is not None:
                call.decision = "limited"
                raise InvalidRequest(refusal)
