"""Answer logging/setLevel. In the stateless era a request carries its level in `_meta`."""

from typing import Any

from toolgate.server.protocol.errors import InvalidParams
from toolgate.server.protocol.session import LEVELS, Call


async def set_level(call: Call) -> dict[str, Any]:
    level = call.params.get("level")
    if level not in LEVELS:
        raise InvalidParams(f"'level' must be one of {', '.join(LEVELS)}")
    call.session.log_level = LEVELS.index(level)
    await call.session.save()
    return {}
