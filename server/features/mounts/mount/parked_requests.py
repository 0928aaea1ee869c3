"""Keep requests whose clients have to come back with an answer: for whom, how long, and how many."""

import asyncio
import os

from toolgate.server.base.bus.replica_ids import create_id_at
from toolgate.server.features.mounts.mount.forwarded_request import ForwardedRequest

PARKED_FOR = 600.0  # seconds that a request waits for its client to come back
MAX_PARKED = 64  # of one principal


class ParkedRequests:
    """The requests of one mount that wait. `replica`: the name of this server among others on the same state, which the
    ids of calls begin with, or "": a client may come back to any of them."""

    def __init__(self, replica: str = "") -> None:
        self._replica = replica
        self._held: dict[str, ForwardedRequest] = {}

    def create_id(self) -> str:
        """Return an id for a call whose client may come back."""
        return create_id_at(self._replica) if self._replica else os.urandom(16).hex()

    def park(self, id: str, request: ForwardedRequest, seconds: float | None = None) -> None:
        """Keep a request for so many seconds; None: as long as a client may take."""
        own = [name for name, parked in self._held.items() if parked.principal == request.principal]
        if len(own) >= MAX_PARKED:
            _end(self._held.pop(own[0]))
        request.turn = request.turn.pop_all()  # which goes on: the mounted server waits
        self._held[id] = request
        request.ending = asyncio.get_running_loop().call_later(seconds or PARKED_FOR, self._expire, id)

    def look_at(self, id: str, principal: str) -> ForwardedRequest | None:
        """Return a request of this principal, which goes on waiting."""
        request = self._held.get(id)
        return request if request is not None and request.principal == principal else None

    def take(self, id: str, principal: str) -> ForwardedRequest | None:
        """Return a request of this principal, once."""
        request = self.look_at(id, principal)
        if request is not None:
            del self._held[id]
            if request.ending is not None:
                request.ending.cancel()
        return request

    def end(self, principal: str | None) -> None:
        """Give up those of a principal; None: of all."""
        for id, request in list(self._held.items()):
            if principal in (None, request.principal):
                del self._held[id]
                _end(request)

    def _expire(self, id: str) -> None:
        _end(self._held.pop(id))


def _end(request: ForwardedRequest) -> None:
    if request.ending is not None:
        request.ending.cancel()
    request.turn.close()
    request.cancel("the client did not come back")
