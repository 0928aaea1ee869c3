"""Deliver what the outbox holds: the oldest delivery of each subscription at a time, fairly, until it is acknowledged.

Deliveries are in memory only while they are sent. Between attempts the queue holds the subscription and when it is due.
Nothing polls: one timer waits for the next due moment, and `add` wakes the queue.
"""

import asyncio
import heapq
import itertools
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from toolgate.server.features.events.webhooks.delivery import Delivery, Disposition, Failure, Outcome
from toolgate.server.features.events.webhooks.outbox import Outbox, PendingSubscription
from toolgate.server.features.events.webhooks.retry_schedule import RetrySchedule
from toolgate.server.features.events.webhooks.turns import Health, Turn, TurnLimits, Turns

OUTBOX_PAUSE = 5.0  # seconds before the outbox is tried again after it failed
GRACE = 2.0  # seconds in which deliveries under way may end when the queue closes
MAX_STALE = 64  # entries of the timer's heap beyond one per subscription, before it is built again

log = logging.getLogger("toolgate.webhooks")


class DeliveryCounters(msgspec.Struct):
    """What the queue did since it began. `failures`: attempts by their word. `lag`: seconds from the events to their
    acknowledgement, summed up over `delivered`."""

    delivered: int = 0
    abandoned: int = 0
    failures: Counter[Failure] = msgspec.field(default_factory=lambda: Counter[Failure]())
    lag: float = 0.0
    last_lag: float = 0.0


class _Entry(msgspec.Struct, eq=False):
    """A subscription in the queue: it waits until `due`, waits for a turn, or its delivery is under way."""

    pending: PendingSubscription
    due: float | None = None  # by the loop's clock
    turn: Turn | None = None
    task: asyncio.Task[None] | None = None
    has_more: bool = False  # something was added while a delivery is under way
    is_cancelled: bool = False


class DeliveryQueue:
    """Send the deliveries of `outbox` with `send`. `now` is in seconds since 1970.

    The deliveries of a subscription are sent in order: the next begins when the outbox has noted the end of the last.
    """

    def __init__(
        self,
        outbox: Outbox,
        send: Callable[[Delivery], Awaitable[Outcome]],
        *,
        schedule: RetrySchedule | None = None,
        limits: TurnLimits | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.counters = DeliveryCounters()
        self._outbox = outbox
        self._send = send
        self._schedule = schedule or RetrySchedule()
        self._turns = Turns(limits or TurnLimits())
        self._now = now
        self._entries: dict[str, _Entry] = {}
        self._heap: list[tuple[float, int, _Entry]] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_waking = False
        self._is_closed = False

    @property
    def running(self) -> int:
        """Return the number of deliveries under way."""
        return self._turns.running

    @property
    def pending(self) -> int:
        """Return the number of subscriptions with undelivered deliveries."""
        return len(self._entries)

    async def start(self) -> None:
        """Add what the outbox holds from before. Raises what the outbox raises."""
        for pending in await self._outbox.list_pending():
            self.add(pending)

    def add(self, pending: PendingSubscription) -> None:
        """Deliver what the subscription has when it is due. A retry that waits is not hastened, so the order stays."""
        if self._is_closed:
            return
        entry = self._entries.get(pending.subscription)
        if entry is not None:
            entry.has_more = True
            return
        entry = self._entries[pending.subscription] = _Entry(pending)
        self._delay(entry, max(0.0, pending.due_at - self._now()))

    def retry_now(self, subscription: str) -> None:
        """Make the retry of a subscription due, such as after its refresh."""
        entry = self._entries.get(subscription)
        if entry is not None and entry.due is not None and not self._is_closed:
            self._delay(entry, 0.0)

    async def cancel(self, subscription: str) -> None:
        """Forget a subscription. When this returns, nothing is sent for it any more."""
        entry = self._entries.pop(subscription, None)
        if entry is None:
            return
        entry.is_cancelled, entry.due = True, None
        self._turns.discard(entry.pending)
        if entry.task is not None and entry.task is not asyncio.current_task():
            entry.task.cancel()
            await asyncio.wait([entry.task])

    async def close(self, grace: float = GRACE) -> None:
        """Begin nothing more, let deliveries under way end within `grace` seconds, and cancel the others: they are sent
        again, under the same id, after the next start."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._entries.clear()
        self._heap.clear()

    def _delay(self, entry: _Entry, seconds: float) -> None:
        """Let an entry wait so long, then for its turn."""
        if seconds <= 0.0:
            entry.due = None
            self._turns.add(entry.pending)
            self._wake()
            return
        entry.due = asyncio.get_running_loop().time() + seconds
        heapq.heappush(self._heap, (entry.due, next(self._order), entry))
        if len(self._heap) > 2 * len(self._entries) + MAX_STALE:
            self._heap = [item for item in self._heap if item[0] == item[2].due]
            heapq.heapify(self._heap)
        self._set_timer()

    def _set_timer(self) -> None:
        """Set the timer for the first entry that is still due then."""
        while self._heap and self._heap[0][0] != self._heap[0][2].due:
            heapq.heappop(self._heap)
        if self._timer is not None and (not self._heap or self._timer.when() != self._heap[0][0]):
            self._timer.cancel()
            self._timer = None
        if self._timer is None and self._heap and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_at(self._heap[0][0], self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._heap and self._heap[0][0] <= now:
            due, _, entry = heapq.heappop(self._heap)
            if due == entry.due:
                self._delay(entry, 0.0)
        self._set_timer()

    def _wake(self) -> None:
        """Begin turns in the loop's next pass, so that what is added together is read together."""
        if not self._is_waking and not self._is_closed:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._begin_turns)

    def _begin_turns(self) -> None:
        self._is_waking = False
        if self._is_closed:
            return
        entries: list[_Entry] = []
        while (turn := self._turns.begin()) is not None:
            entry = self._entries[turn.pending.subscription]
            entry.turn, entry.has_more = turn, False
            entries.append(entry)
        if entries:
            self._start(self._take(entries))

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _take(self, entries: Sequence[_Entry]) -> None:
        """Read the deliveries of these from the outbox, and begin to send them."""
        try:
            deliveries = await self._outbox.take_due([entry.pending.subscription for entry in entries])
        except Exception:
            log.exception("the outbox can't be read; it is tried again in %g s", OUTBOX_PAUSE)
            for entry in entries:
                self._end_turn(entry, OUTBOX_PAUSE)
            return
        found = {delivery.subscription: delivery for delivery in deliveries}
        for entry in entries:
            delivery = found.get(entry.pending.subscription)
            if delivery is None or entry.is_cancelled or self._is_closed:
                self._end_turn(entry, 0.0 if entry.has_more else None)
            else:
                entry.task = self._start(self._deliver(entry, delivery))

    async def _deliver(self, entry: _Entry, delivery: Delivery) -> None:
        """Make one attempt, and note how it ended."""
        pause: float | None = OUTBOX_PAUSE
        try:
            outcome = await self._attempt(delivery)
            self._count(entry.pending, delivery, outcome)
            pause = None
            if outcome.disposition is Disposition.RETRY:
                pause = self._schedule.pause(delivery.attempts + 1, outcome)
            retry_at = None if pause is None else self._now() + pause
            has_more = await self._outbox.note_outcome(delivery, outcome, retry_at)
            if pause is None and (has_more or entry.has_more):
                pause = 0.0
        except Exception:
            log.exception("the outcome of a delivery can't be stored; it is sent again in %g s", OUTBOX_PAUSE)
            pause = OUTBOX_PAUSE
        finally:
            entry.task = None
            self._end_turn(entry, pause)

    async def _attempt(self, delivery: Delivery) -> Outcome:
        try:
            return await self._send(delivery)
        except Exception:
            log.exception("an attempt to deliver failed in this server")
            return Outcome(Disposition.RETRY, "connection_refused")

    def _count(self, pending: PendingSubscription, delivery: Delivery, outcome: Outcome) -> None:
        counters = self.counters
        if outcome.error is not None:
            counters.failures[outcome.error] += 1
        if outcome.disposition is Disposition.FINAL:
            counters.abandoned += 1
        elif outcome.disposition is Disposition.ACKNOWLEDGED:
            counters.delivered += 1
            counters.last_lag = max(0.0, self._now() - delivery.created_at)
            counters.lag += counters.last_lag
        has_answered = outcome.error is None or outcome.error.startswith("http")
        self._turns.set_health(pending, Health.ANSWERING if has_answered else Health.FAILING)

    def _end_turn(self, entry: _Entry, pause: float | None) -> None:
        """Free the slot of an entry. It waits `pause` seconds for its next turn; with None the queue forgets it."""
        if entry.turn is not None:
            self._turns.end(entry.turn)
            entry.turn = None
        if not entry.is_cancelled and not self._is_closed:
            if pause is None:
                del self._entries[entry.pending.subscription]
            else:
                self._delay(entry, pause)
        self._wake()
