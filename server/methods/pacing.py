"""Holds a principal to its calls a minute. Knows nothing of what is called."""

from toolgate.server.policy.rate_limit import ANY
from toolgate.server.protocol.errors import InvalidRequest
from toolgate.server.protocol.session import Call
from toolgate.server.server import Server


def count_call(server: Server, call: Call, scope: str) -> str | None:
    """Why this call is one too many; None: it is counted."""
    if server.call_rate is None:
        return None
    refusal = server.call_rate.count(call.session.principal, scope)
    if refusal is not None:
        call.decision = "limited"
    return refusal


def require_rate(server: Server, call: Call, scope: str = ANY) -> None:
    """Count a call whose result has no place for a refusal. Raises InvalidRequest."""
    refusal = count_call(server, call, scope)
    if refusal is not None:
        raise InvalidRequest(refusal)
