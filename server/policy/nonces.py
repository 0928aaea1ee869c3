"""Issue nonces that are good once, for a while, and for one principal. They live in memory and end with the server."""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from toolgate.server.state.sealed_state import LIFETIME

MAX_OPEN = 64  # open ones of a principal: no person has as many questions before them


class Nonces:
    """Each is good for `lifetime` seconds, of which `now` counts. One more than `most` of a principal's costs them
    their oldest, and nobody else anything."""

    def __init__(
        self, lifetime: float = LIFETIME, most: int = MAX_OPEN, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._lifetime = lifetime
        self._most = most
        self._now = now
        self._open: dict[str, OrderedDict[str, float]] = {}  # principal → nonce → until when; the oldest first

    def issue(self, principal: str) -> str:
        """A new one of this principal's."""
        self._drop_expired()
        own = self._open.setdefault(principal, OrderedDict())
        while len(own) >= self._most:
            own.popitem(last=False)
        nonce = secrets.token_urlsafe(18)
        own[nonce] = self._now() + self._lifetime
        return nonce

    def redeem(self, principal: str, nonce: str) -> bool:
        """Whether it is this principal's and was good until now. From now on it is not."""
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
