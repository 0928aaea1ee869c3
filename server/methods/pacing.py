"""Holds a principal to its calls a minute. Knows nothing of what is called."""

from toolgate.server.policy.rate_limit import ANY
from toolgate.server.protocol.errors import InvalidRequest
from toolgate.server.protocol.session import Call
from toolgate.server.server import Server


def too_many(server: Server, call: Call, scope: str) -> str | None:
    """Why this call is one too many; None: it is counted."""
    if server.calls is None:
        return None
    refusal = server.calls.take(call.session.principal, scope)
    if refusal is not None:
        call.decision = "limited"
    return refusal


def admit(server: Server, call: Call, scope: str = ANY) -> None:
    """Count a call whose result has no place for a refusal. Raises InvalidRequest."""
    refusal = too_many(server, call, scope)
    if refusal is not None:
        raise InvalidRequest(refusal)
