"""Gather what a gateway has taken from a node, and acknowledge it: the node then forgets it."""

import asyncio
from collections.abc import Callable
from functools import partial

from toolgate.server.features.nodes.messages import Acknowledgement, NodeAnswer, TaskEnded

GATHER = 0.02  # seconds in which acknowledgements are gathered
LARGE = 64 * 2**10  # bytes of an answer that is acknowledged at once
MAX_ENDS = 1_000  # ends of tasks that are remembered
MAX_UNREPORTED = 2_000  # ends of tasks that wait for their report


class Receipts:
    """What was taken and is not acknowledged. `on_room` is called when ends that were not taken may come again."""

    def __init__(self, send: Callable[[Acknowledgement], None], on_room: Callable[[], None]) -> None:
        self._send = send
        self._on_room = on_room
        self._life = object()  # stands for the node's
        self._has_missed = False
        self._answers: list[int] = []
        self._ends: list[int] = []
        self._used: dict[int, None] = {}  # the node sends an end again if its acknowledgement is lost
        self._unreported: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add_answer(self, answer: NodeAnswer) -> None:
        """The request has its answer, or nobody wants it."""
        self._answers.append(answer.number)
        self._send_soon(at_once=len(answer.result) > LARGE)

    def take_end(self, end: TaskEnded, report: Callable[[TaskEnded, Callable[[bool], None]], None]) -> None:
        """Have an end reported, once. `report(end, confirm)` confirms True once it is, False if it can't be."""
        if end.sequence in self._used:
            self._add_end(end.sequence)
        elif len(self._unreported) >= MAX_UNREPORTED:
            self._has_missed = True
        elif end.sequence not in self._unreported:
            self._unreported.add(end.sequence)
            report(end, partial(self._confirm_end, self._life, end.sequence))

    def _confirm_end(self, life: object, sequence: int, is_reported: bool) -> None:
        if life is not self._life:
            return  # the node has restarted, and numbers its ends again
        self._unreported.discard(sequence)
        if is_reported:
            self._add_end(sequence)
        if self._has_missed and len(self._unreported) < MAX_UNREPORTED // 2:
            self._has_missed = False
            self._on_room()

    def _add_end(self, sequence: int) -> None:
        self._used[sequence] = None
        if len(self._used) > MAX_ENDS:
            del self._used[next(iter(self._used))]
        self._ends.append(sequence)
        self._send_soon(at_once=False)

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
        self._life = object()

    def _send_soon(self, *, at_once: bool) -> None:
        if at_once:
            self.send()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER, self.send)
