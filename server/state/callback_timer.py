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

from toolgate.server.state.firings import PENDING, Firing, claim_due
from toolgate.server.state.live_processes import ProcessRegistry
from toolgate.server.state.store import Store

__all__ = ["CallbackTimer", "Firing"]

MAX_PAUSE = 60.0  # longest between two looks: to see a jump of the clock, the end of a suspension, or a dead owner
DELIVERY = 5.0  # longest a delivery may take: the others wait behind it

log = logging.getLogger(__name__)


def serves_everyone(_principal: str) -> bool:
    return True


class CallbackTimer:
    """One a process. `serves` says whose callbacks of a dead process may be taken over: those of a principal
    who can come back to this one. `now` is in seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        deliver: Callable[[Firing], Awaitable[None] | None],
        serves: Callable[[str], bool] = serves_everyone,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.deliver = deliver
        self.serves = serves
        self.now = now
        self.processes = ProcessRegistry(store.folder / "processes")
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to fire; does nothing the second time. Start it when somebody can be told: what is overdue is
        at once.

        Costs nothing while no callback is pending, and SQLAlchemy's import otherwise.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="clock")

    def wake(self) -> None:
        """A callback was set or cancelled: look again."""
        self._changed.set()

    async def stop(self) -> None:
        """Stop firing. What is pending stays in the database for the next process."""
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
        """Fire what is due now. Gives the seconds until the next look."""
        firings, soonest = await claim_due(self.store, self.processes, self.serves, self.now)
        for firing in firings:
            await self._fire(firing)
        if firings and soonest == float("inf"):
            return 0.0  # to see whether that was the last there is
        return min(MAX_PAUSE, max(0.0, soonest - self.now()))

    async def _fire(self, firing: Firing) -> None:
        try:
            async with asyncio.timeout(DELIVERY):
                told = self.deliver(firing)
                if told is not None:
                    await told
        except Exception:
            log.exception("callback %d of %s fired, but could not be told", firing.slot, firing.principal)
