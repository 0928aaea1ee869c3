"""Tell which tries of a call go on with one that was counted.

A client of the stateless era that is asked something calls again with what it was given (`requestState`). Each state
goes on with its call once, at whichever server: whoever sends it again makes a new call.
"""

import secrets

from toolgate.server.base.bus.bus import BusUnreachableError, Keys
from toolgate.server.features.mounts.mount.forwarded_request import recall
from toolgate.server.state.keys.sealed_state import LIFETIME
from toolgate.tools.api.context.context import Context

TICKET = "mounted-ticket"  # and a number, under which later tries know those of earlier ones


class ContinuedCalls:
    """The tries of one mount's calls. `keys` know the tickets that were used. `issuer` begins each ticket, and one of
    another counts for nothing: keys in the memory of one process say nothing of another's."""

    def __init__(self, keys: Keys, mount: str, issuer: str) -> None:
        self._keys = keys
        self._mount = mount
        self._issuer = issuer

    async def continues(self, context: Context) -> bool:
        """Return whether this try goes on with a call. To be asked once in each try."""
        if not context.knows("stateless"):
            return False

        async def create_ticket() -> str:
            return f"{self._issuer}-{secrets.token_hex(8)}"

        ticket, number = "", 0
        while (found := await recall(context, f"{TICKET}-{number}")) is not None:
            ticket, number = found, number + 1
        await context.once(f"{TICKET}-{number}", create_ticket)  # for the next try
        return bool(ticket) and ticket.startswith(f"{self._issuer}-") and await self._use(ticket)

    async def _use(self, ticket: str) -> bool:
        """Return whether a ticket was not used before. Without an answer of Redis it counts for nothing."""
        try:
            return await self._keys.set_if_absent(f"mount-ticket {self._mount} {ticket}", b"", LIFETIME)
        except BusUnreachableError:
            return False
