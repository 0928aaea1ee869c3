"""Fires callbacks when they are due, each firing once however many processes share the state. Knows nothing
of how the news reaches a client: it calls `deliver`.

A callback belongs to the process that set it, since that one holds the session; a process that finds one
whose owner is dead takes it over. Time is the wall clock's, as it must mean the same after a restart. A
cadence is fixed: a late firing doesn't move the next one, and firings missed in a pause are skipped but for
one.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolgate.server.state.processes import Processes
from toolgate.server.state.store import StateError, Store

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

PENDING = "callbacks"  # flag: some principal has a callback
LOOK = 60.0  # longest between two looks: to see a jump of the clock, the end of a suspension, or a dead owner
DELIVERY = 5.0  # longest a delivery may take: the others wait behind it

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Firing:
    principal: str
    session: str  # the place's key of the session that set it, which may have ended; "" where there was none
    slot: int
    message: str
    left: int  # firings still to come; -1 for ever


def everyone(_principal: str) -> bool:
    return True


class Clock:
    """One a process. `serves` says whose callbacks of a dead process may be taken over: those of a principal
    who can come back to this one. `now` is in seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        deliver: Callable[[Firing], Awaitable[None] | None],
        serves: Callable[[str], bool] = everyone,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.deliver = deliver
        self.serves = serves
        self.now = now
        self.processes = Processes(store.folder / "processes")
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to fire; does nothing the second time. Start it when somebody can be told: what is overdue is
        at once.

        Costs nothing while no callback is pending, and SQLAlchemy's import otherwise.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="clock")

    def changed(self) -> None:
        """A callback was set or cancelled: look again."""
        self._changed.set()

    async def close(self) -> None:
        """Stop firing. What is pending stays in the database for the next process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self.processes.close()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            pause = LOOK
            if self.store.flagged(PENDING, ""):
                try:
                    pause = await self._look()
                except StateError as error:
                    log.warning("callbacks can't fire: %s", error)
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _look(self) -> float:
        """Fire what is due. Gives the seconds until the next look."""
        firings, soonest = await self.store.transact(self._claim)
        for firing in firings:
            await self._fire(firing)
        return min(LOOK, max(0.0, soonest - self.now()))

    async def _fire(self, firing: Firing) -> None:
        try:
            async with asyncio.timeout(DELIVERY):
                told = self.deliver(firing)
                if told is not None:
                    await told
        except Exception:
            log.exception("callback %d of %s fired, but could not be told", firing.slot, firing.principal)

    def _claim(self, connection: "Connection") -> tuple[list[Firing], float]:
        """What is due and this process's to fire, with its next time already written down; and the soonest
        after it."""
        from toolgate.server.state import tables  # start-up: SQLAlchemy

        rows = connection.execute(tables.callback.select()).all()
        if not rows:
            self.store.flag(PENDING, "", False)
        firings: list[Firing] = []
        soonest = float("inf")
        owners = {process: self.processes.alive(process) for process in {row.process for row in rows}}
        for row in rows:
            if row.process != self.processes.own() and (
                owners[row.process] or not self.serves(row.principal)
            ):
                continue
            now = self.now()
            due = row.next_at <= now
            left = row.left - 1 if due and row.left > 0 else row.left
            next_at = _next(row.next_at, row.delay, now)
            if self._write(connection, row, next_at, left) and due:
                firings.append(Firing(row.principal, row.session, row.slot, row.message, left))
            if left:
                soonest = min(soonest, next_at)
        return firings, soonest

    def _write(
        self, connection: "Connection", row: "Row[tuple[object, ...]]", next_at: float, left: int
    ) -> bool:
        """Write down a callback's next time, or take it away after its last; false when another process was
        first."""
        from toolgate.server.state import tables  # start-up: SQLAlchemy

        of, own = tables.callback.c, self.processes.own()
        if (next_at, left, own) == (row.next_at, row.left, row.process):
            return True
        this = (of.principal == row.principal) & (of.slot == row.slot) & (of.next_at == row.next_at)
        if left == 0:
            return connection.execute(tables.callback.delete().where(this)).rowcount == 1
        change = tables.callback.update().where(this).values(next_at=next_at, left=left, process=own)
        return connection.execute(change).rowcount == 1


def _next(next_at: float, delay: int, now: float) -> float:
    """The first time after `now` on the grid that `next_at` and `delay` span."""
    if next_at > now + delay:  # the clock was set back: nothing may be further away than its delay
        return now + delay
    if next_at > now:
        return next_at
    return next_at + delay * ((now - next_at) // delay + 1)
