"""Hold requests to a node until their answers have come."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from toolgate.server.base.rpc import frames
from toolgate.server.features.nodes.fair_room import FairRoom
from toolgate.server.features.nodes.gateway import message_bounds
from toolgate.server.features.nodes.messages import NodeAnswer, NodeRequest

MAX_UNSENT = 80 * 2**20  # bytes of requests under way: the largest, and others
MAX_GIVEN_UP = 1_000  # requests whose late answers may be as large as they asked for
MAX_WAITING = 5_000  # calls' requests under way: each that waits for output is one


class NoRoomError(Exception):
    """There is no room for another request."""


class WaitingRequest:
    """A request without an answer. `run_id`: the run that it is about. `epoch` is the life of the node that it was sent
    to."""

    def __init__(
        self, request: NodeRequest, run_id: int | None, answer: "asyncio.Future[NodeAnswer]", largest: int
    ) -> None:
        self.number = request.number
        self.principal = request.principal
        self.is_call = request.is_call
        self.frame = frames.encode_frame(request)
        self.answer = answer
        self.run_id = run_id
        self.largest = largest  # bytes of the answer
        self.epoch: str | None = None
        self.is_cancelled = False  # the answer is only the node's word that it has ended

    @property
    def has_failed(self) -> bool:
        """Whether the answer was given up."""
        return self.answer.done() and not self.answer.cancelled() and self.answer.exception() is not None


class WaitingRequests:
    """The requests under way, within their limits."""

    def __init__(self) -> None:
        self._number = 0
        self._requests: dict[int, WaitingRequest] = {}
        self._given_up: dict[int, int] = {}  # number → bytes of the answer that may still come
        self._unsent = FairRoom(MAX_UNSENT)
        self._places = {True: FairRoom(MAX_WAITING), False: FairRoom(MAX_WAITING // 2)}  # of calls, and of pages

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[WaitingRequest]:
        return iter(self._requests.values())

    def find(self, number: int) -> WaitingRequest | None:
        return self._requests.get(number)

    def create(self, principal: str, name: str, arguments: Mapping[str, Any], *, is_call: bool) -> WaitingRequest:
        """Return a request to send, and then to add. Raises UnicodeEncodeError, and NoRoomError before it is encoded
        where its texts alone are too large."""
        self._require_room(principal, _measure_texts(arguments), is_call=is_call)
        encoded = frames.encode_exactly(arguments)
        self._require_room(principal, memoryview(encoded).nbytes, is_call=is_call)
        self._number += 1
        request = NodeRequest(self._number, principal, name, encoded, is_call)
        run_id = arguments.get("run_id") if is_call else None
        largest = message_bounds.find_largest_answer(name, arguments)
        return WaitingRequest(request, run_id, asyncio.get_running_loop().create_future(), largest)

    def find_largest(self, head: bytes) -> int:
        """Return how many bytes a message may have, by its first bytes. An answer that comes after its request was
        given up may be as large as before, once."""
        number = message_bounds.find_answered_number(head)
        if number is None:
            return message_bounds.SMALL
        waiting = self._requests.get(number)
        return self._given_up.pop(number, message_bounds.SMALL) if waiting is None else waiting.largest

    def _require_room(self, principal: str, size: int, *, is_call: bool) -> None:
        if not (self._unsent.fits(principal, size) and self._places[is_call].fits(principal, 1)):
            raise NoRoomError

    def add(self, waiting: WaitingRequest) -> None:
        self._requests[waiting.number] = waiting
        self._unsent.take(waiting.principal, len(waiting.frame))
        self._places[waiting.is_call].take(waiting.principal, 1)

    def remove(self, waiting: WaitingRequest) -> None:
        """Remove the request if it is under way."""
        if self._requests.pop(waiting.number, None) is not None:
            self._given_up[waiting.number] = waiting.largest
            while len(self._given_up) > MAX_GIVEN_UP:
                del self._given_up[next(iter(self._given_up))]
            self._unsent.release(waiting.principal, len(waiting.frame))
            self._places[waiting.is_call].release(waiting.principal, 1)


def _measure_texts(arguments: Mapping[str, Any]) -> int:
    """Return how many bytes the arguments have at least as JSON, without encoding them: bytes are base64 there."""
    waiting: list[Any] = list(arguments.values())
    total = 0
    while waiting:
        value = waiting.pop()
        match value:
            case str():
                total += len(value)
            case bytes():
                total += len(value) * 4 // 3
            case dict():
                waiting += (*value.keys(), *value.values())
            case list() | tuple():
                waiting += value
            case _:  # a number, a path
                pass
    return total
