"""Issue nonces that are valid once: for one principal, at all replicas of a server."""

import secrets
from typing import TYPE_CHECKING

from toolgate.server.base.bus.bus import BusUnreachableError
from toolgate.server.state.keys.sealed_state import LIFETIME
from toolgate.tools.api.errors import ToolError

if TYPE_CHECKING:
    from toolgate.server.base.bus.bus import Keys

MAX_OPEN = 64  # open nonces per principal: a person has fewer questions open
USED = b"used"
SEPARATOR = "."
COUNTED = 86_400.0  # seconds after which the places are numbered from the start again


class Nonces:
    """Nonces, each valid for `lifetime` seconds. A principal has `most` places for them, in turn: one more ends the
    oldest."""

    def __init__(self, keys: "Keys", lifetime: float = LIFETIME, most: int = MAX_OPEN) -> None:
        self._keys = keys
        self._lifetime = lifetime
        self._most = most

    async def issue(self, principal: str) -> str:
        """Return a new nonce for this principal. Raises ToolError."""
        secret = secrets.token_urlsafe(18)
        try:
            place = await self._keys.increment(f"nonces {principal}", COUNTED) % self._most
            await self._keys.set(_name(principal, str(place)), secret.encode(), self._lifetime)
        except BusUnreachableError as error:
            raise ToolError(f"no approval can be asked for now: {error}") from None
        return f"{place}{SEPARATOR}{secret}"

    async def redeem(self, principal: str, nonce: str) -> bool:
        """Use up the nonce; return whether it was valid and this principal's. Raises ToolError."""
        place, _, secret = nonce.partition(SEPARATOR)
        if not place.isdigit() or len(place) > len(str(self._most)):
            return False
        try:
            return await self._keys.replace(_name(principal, place), secret.encode(), USED, self._lifetime)
        except BusUnreachableError as error:
            raise ToolError(f"the approval can't be checked now, and the call was not run: {error}") from None


def _name(principal: str, place: str) -> str:
    return f"nonce {place} {principal}"
