"""Tell which tries of a call go on with one that was counted.

A client of the stateless era that is asked something calls again with what it was given (`requestState`). Each state
goes on with its call once: whoever sends it again makes a new call.
"""

import secrets
from collections.abc import Callable

from toolgate.server.features.mounts.mount.forwarded_request import recall
from toolgate.tools.api.context.context import Context

TICKET = "mounted-ticket"  # and a number, under which later tries know those of earlier ones
MAX_USED = 10_000  # tickets that are known to be used


class ContinuedCalls:
    """The tries of one mount's calls, at this server. `create_ticket()` returns what nobody can guess."""

    def __init__(self, most: int = MAX_USED, create_ticket: Callable[[], str] = lambda: secrets.token_hex(8)) -> None:
        self._most = most
        self._create_ticket = create_ticket
        self._used: dict[str, None] = {}  # the latest last

    async def continues(self, context: Context) -> bool:
        """Return whether this try goes on with a call. To be asked once in each try."""
        if not context.knows("stateless"):
            return False

        async def create_ticket() -> str:
            return self._create_ticket()

        ticket, number = "", 0
        while (found := await recall(context, f"{TICKET}-{number}")) is not None:
            ticket, number = found, number + 1
        await context.once(f"{TICKET}-{number}", create_ticket)  # for the next try
        if not ticket or ticket in self._used:
            return False
        if len(self._used) >= self._most:
            del self._used[next(iter(self._used))]
        self._used[ticket] = None
        return True
