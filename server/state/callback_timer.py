"""Fire callbacks when they are due, each firing once however many processes share the state.

A callback belongs to the process that set it, which has the session. Another process takes it over once that one is
dead. Time is the wall clock's, so it means the same after a restart. The cadence is fixed: a late firing does not move
the next one. Of the firings missed in a pause, one is made up for.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from toolgate.server.state import tables
from toolgate.server.state.live_processes import LiveProcesses
from toolgate.server.state.store import Store

MAX_PAUSE = 60.0  # seconds at most between two runs: to see a clock jump, the end of a suspension, or a dead owner
DELIVERY = 5.0  # seconds a delivery may take: the others wait behind it
PENDING = "callbacks"  # flag: a principal has a callback
MAX_REMEMBERED = 50  # firings stored of a principal: a list a model can still read

log = logging.getLogger(__name__)


class Firing(msgspec.Struct, frozen=True):
    """A callback that is due."""

    principal: str
    session: str  # the place's key of the session that set it, which may have ended; "" where there was none
    slot: int
    message: str
    remaining: int  # firings still to come; -1 for ever


RecordFiring = Callable[["tables.Connection", Firing, int], None]


def serves_everyone(_principal: str) -> bool:
    return True


class CallbackTimer:
    """Fires the callbacks of one process, by `deliver`.

    serves: whether a principal can come back to this process; its callbacks are taken over from a dead one
    now: seconds since the epoch
    processes: those that share the state; None: those with the same state folder
    """

    def __init__(
        self,
        store: Store,
        deliver: Callable[[Firing], Awaitable[None] | None],
        serves: Callable[[str], bool] = serves_everyone,
        now: Callable[[], float] | None = None,
        processes: LiveProcesses | None = None,
    ) -> None:
        self.store = store
        self.deliver = deliver
        self.serves = serves
        self.now = now or store.now
        self.processes = processes or store.open_processes()
        self.record: RecordFiring | None = None  # called in the transaction that fires, with the firing's number
        self._changed = asyncio.Event()
        self._changes: dict[str, asyncio.Future[None]] = {}  # principal → those who wait for one
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to fire; does nothing the second time. Overdue callbacks fire at once, so start it with a client there.

        Costs nothing while no callback is pending, and SQLAlchemy's import otherwise.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="callback timer")

    def wake(self) -> None:
        """Read the callbacks again: one was set or cancelled, or its process has died."""
        self._changed.set()

    def next_change(self, principal: str) -> "asyncio.Future[None]":
        """Return what is done once a callback of the principal fires here, or is cancelled here."""
        return self._changes.setdefault(principal, asyncio.get_running_loop().create_future())

    def announce(self, principal: str) -> None:
        """Wake those who wait for a change."""
        waiting = self._changes.pop(principal, None)
        if waiting is not None:
            waiting.set_result(None)

    async def stop(self) -> None:
        """Stop firing. Pending callbacks stay in the database for the next process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self.processes.close()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            pause = MAX_PAUSE
            try:
                if self.store.has_flag(PENDING, ""):
                    pause = await self.fire_due()
            except Exception:
                log.exception("callbacks can't fire; the next try is in %d s", MAX_PAUSE)
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def fire_due(self) -> float:
        """Fire what is due now, and return the seconds until the next run."""
        firings, soonest = await claim_due(self.store, self.processes, self.serves, self.now, self.record)
        for firing in firings:
            await self._fire(firing)
        if firings and soonest == float("inf"):
            return 0.0  # to find out whether that was the last one
        return min(MAX_PAUSE, max(0.0, soonest - self.now()))

    async def _fire(self, firing: Firing) -> None:
        try:
            async with asyncio.timeout(DELIVERY):
                delivery = self.deliver(firing)
                if delivery is not None:
                    await delivery
        except Exception:
            log.exception("callback %d of %s fired, but was not delivered", firing.slot, firing.principal)
        self.announce(firing.principal)


async def claim_due(
    store: Store,
    processes: LiveProcesses,
    serves: Callable[[str], bool],
    now: Callable[[], float],
    record: "RecordFiring | None" = None,
) -> tuple[list[Firing], float]:
    """Return what is due for this process, with its next time already stored; and when the next one is due.

    A callback belongs to its process. One of a dead process becomes this one's, if it `serves` the principal.
    """
    dead = await processes.find_dead(await store.read(_list_owners))

    def advance_all(connection: "tables.Connection") -> tuple[list[Firing], float]:
        rows = connection.execute(tables.callback.select()).all()
        if not rows:
            store.set_flag(PENDING, "", False)
            return [], float("inf")
        time, own = now(), processes.own_name()
        mine = [row for row in rows if row.process == own or (row.process in dead and serves(row.principal))]
        advanced = [_advance(connection, row, own, time) for row in mine]
        _remember(connection, [firing for firing, _ in advanced if firing], time, record)
        return [firing for firing, _ in advanced if firing], min((at for _, at in advanced), default=float("inf"))

    return await store.transact(advance_all, alone="callbacks")


def _list_owners(connection: "tables.Connection") -> list[str]:
    """Return the processes that have callbacks."""
    return list(connection.execute(tables.select(tables.callback.c.process).distinct()).scalars())


def _advance(
    connection: "tables.Connection", row: "tables.Row[tuple[object, ...]]", own: str, now: float
) -> tuple[Firing | None, float]:
    """Store the callback as it is after `now`. Return its firing, if it is due, and its next time."""
    columns = tables.callback.c
    is_due = row.next_at <= now
    remaining = row.left - 1 if is_due and row.left > 0 else row.left
    next_at = _next(row.next_at, row.delay, now)
    this = (columns.principal == row.principal) & (columns.slot == row.slot) & (columns.next_at == row.next_at)
    this &= columns.process == row.process
    claim: Any = None
    if remaining == 0:
        next_at, claim = float("inf"), tables.callback.delete().where(this)
    elif (next_at, own) != (row.next_at, row.process):
        claim = tables.callback.update().where(this).values(next_at=next_at, left=remaining, process=own)
    if claim is not None and connection.execute(claim).rowcount != 1:
        return None, now + MAX_PAUSE  # another process has it
    return Firing(row.principal, row.session, row.slot, row.message, remaining) if is_due else None, next_at


def _remember(
    connection: "tables.Connection", firings: list[Firing], now: float, record: "RecordFiring | None"
) -> None:
    """Store what fires, and remove all but the newest firings."""
    firing = tables.firing
    for fired in firings:
        row = {"principal": fired.principal, "slot": fired.slot, "message": fired.message, "fired_at": now}
        key = connection.execute(firing.insert().values(row)).inserted_primary_key
        if record is not None and key is not None:
            record(connection, fired, int(key[0]))
    for principal in {fired.principal for fired in firings}:
        mine = firing.c.principal == principal
        newest = tables.select(firing.c.id).where(mine).order_by(firing.c.id.desc()).limit(MAX_REMEMBERED)
        connection.execute(firing.delete().where(mine, firing.c.id.not_in(newest)))


def _next(next_at: float, delay: int, now: float) -> float:
    """Return the first time after `now` on the grid that `next_at` and `delay` span."""
    if next_at > now + delay:  # the clock was set back: nothing may be further away than its delay
        return now + delay
    if next_at > now:
        return next_at
    return next_at + delay * ((now - next_at) // delay + 1)
