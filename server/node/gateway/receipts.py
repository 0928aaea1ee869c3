"""Gather what a gateway has taken from a node, and acknowledge it: the node then forgets it."""

import asyncio
from collections.abc import Callable

from toolgate.server.node.messages import Acknowledgement, Answer

GATHER = 0.02  # seconds in which acknowledgements are gathered
LARGE = 64 * 2**10  # bytes of an answer that is acknowledged at once
MAX_ENDS = 1_000  # ends of tasks that are remembered
MAX_UNREPORTED = 2_000  # ends of tasks that wait for their report


class Receipts:
    """What was taken and is not acknowledged."""

    def __init__(self, send: Callable[[Acknowledgement], None]) -> None:
        self._send = send
        self._answers: list[int] = []
        self._ends: list[int] = []
        self._used: dict[int, None] = {}  # the node sends an end again if its acknowledgement is lost
        self._unreported: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add_answer(self, answer: Answer) -> None:
        """The request has its answer, or nobody wants it."""
        self._answers.append(answer.number)
        self._send_soon(at_once=len(answer.result) > LARGE)

    @property
    def is_full(self) -> bool:
        """Whether so many ends wait for their report that no more are taken."""
        return len(self._unreported) >= MAX_UNREPORTED

    @property
    def has_room(self) -> bool:
        """Whether the greater part of the ends that waited are reported."""
        return len(self._unreported) < MAX_UNREPORTED // 2

    def begin_end(self, sequence: int) -> bool:
        """Note that an end will be reported. Return False if it is already."""
        if sequence in self._unreported:
            return False
        self._unreported.add(sequence)
        return True

    def drop_end(self, sequence: int) -> None:
        """The end can't be reported here."""
        self._unreported.discard(sequence)

    def add_end(self, sequence: int) -> None:
        """The end of a task is reported."""
        self._unreported.discard(sequence)
        self._used[sequence] = None
        if len(self._used) > MAX_ENDS:
            del self._used[next(iter(self._used))]
        self._ends.append(sequence)
        self._send_soon(at_once=False)

    def has_end(self, sequence: int) -> bool:
        """Return whether this end was reported before."""
        return sequence in self._used

    def send(self) -> None:
        """Acknowledge all that was taken."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._answers or self._ends:
            self._send(Acknowledgement(self._answers, self._ends))
            self._answers, self._ends = [], []

    def clear(self) -> None:
        """Forget all: the node has restarted."""
        self._answers, self._ends = [], []
        self._used.clear()
        self._unreported.clear()

    def _send_soon(self, *, at_once: bool) -> None:
        if at_once:
            self.send()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER, self.send)
