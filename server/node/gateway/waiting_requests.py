"""Hold requests to a node until their answers have come."""

import asyncio
from collections.abc import Iterator

from toolgate.server.node.messages import Answer, NodeRequest
from toolgate.server.rpc import frames
from toolgate.server.rpc.fair_room import FairRoom

MAX_UNSENT = 80 * 2**20  # bytes of requests under way: the largest, and others
MAX_WAITING = 5_000  # calls' requests under way: each that waits for output is one


class WaitingRequest:
    """A request without an answer. `run_id`: the run that it is about. `epoch` is the life of the node that it was sent
    to."""

    def __init__(self, request: NodeRequest, run_id: int | None, answer: "asyncio.Future[Answer]") -> None:
        self.number = request.number
        self.principal = request.principal
        self.is_call = request.is_call
        self.frame = frames.encode_frame(request)
        self.answer = answer
        self.run_id = run_id
        self.epoch: str | None = None
        self.is_cancelled = False  # the answer is only the node's word that it has ended

    @property
    def has_failed(self) -> bool:
        """Whether the answer was given up."""
        return self.answer.done() and not self.answer.cancelled() and self.answer.exception() is not None


class WaitingRequests:
    """The requests under way, within their limits."""

    def __init__(self) -> None:
        self._requests: dict[int, WaitingRequest] = {}
        self._unsent = FairRoom(MAX_UNSENT)
        self._places = {True: FairRoom(MAX_WAITING), False: FairRoom(MAX_WAITING // 2)}  # of calls, and of pages

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[WaitingRequest]:
        return iter(self._requests.values())

    def find(self, number: int) -> WaitingRequest | None:
        return self._requests.get(number)

    def fits(self, waiting: WaitingRequest) -> bool:
        """Return whether there is room for the request."""
        places = self._places[waiting.is_call]
        return self._unsent.fits(waiting.principal, len(waiting.frame)) and places.fits(waiting.principal, 1)

    def add(self, waiting: WaitingRequest) -> None:
        self._requests[waiting.number] = waiting
        self._unsent.take(waiting.principal, len(waiting.frame))
        self._places[waiting.is_call].take(waiting.principal, 1)

    def remove(self, waiting: WaitingRequest) -> None:
        """Remove the request if it is under way."""
        if self._requests.pop(waiting.number, None) is not None:
            self._unsent.release(waiting.principal, len(waiting.frame))
            self._places[waiting.is_call].release(waiting.principal, 1)
