"""Hold what decides whether a call may run: rules, the names they know callers by, approvals and the limit on calls."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from toolgate.server.policy.nonces import Nonces
from toolgate.server.policy.rate_limit import ANY, CallRateLimiter
from toolgate.server.policy.rules import Rule, RuleCaller, Rules, Verdict
from toolgate.server.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from toolgate.server.protocol.session import Call, Session
    from toolgate.tools.api.tool import Tool


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
