"""Fire callbacks when they are due, each firing once however many processes share the state.

A callback belongs to the process that set it, which has the session; another process takes it over when that one is
dead. Time is the wall clock's, since it must mean the same after a restart. The cadence is fixed: a late firing does
not move the next one, and of the firings missed in a pause one is made up for.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from toolgate.server.state.firings import PENDING, Firing, claim_due
from toolgate.server.state.live_processes import ProcessRegistry
from toolgate.server.state.store import Store

__all__ = ["CallbackTimer", "Firing"]

MAX_PAUSE = 60.0  # seconds at most between two runs: to see a clock jump, the end of a suspension, or a dead owner
DELIVERY = 5.0  # seconds a delivery may take: the others wait behind it

log = logging.getLogger(__name__)


def serves_everyone(_principal: str) -> bool:
    return True


class CallbackTimer:
    """Fires the callbacks of one process, by `deliver`.

    serves: whether a principal can come back to this process; its callbacks are taken over from a dead one
    now: seconds since the epoch
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
        """Begin to fire; does nothing the second time. Overdue callbacks fire at once, so start it with a client there.

        Costs nothing while no callback is pending, and SQLAlchemy's import otherwise.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="callback timer")

    def wake(self) -> None:
        """Read the callbacks again: one was set or cancelled."""
        self._changed.set()

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
        """Fire what is due now. Return the seconds until the next run."""
        firings, soonest = await claim_due(self.store, self.processes, self.serves, self.now)
        for firing in firings:
            await self._fire(firing)
        if firings and soonest == float("inf"):
            return 0.0  # to see whether that was the last one
        return min(MAX_PAUSE, max(0.0, soonest - self.now()))

    async def _fire(self, firing: Firing) -> None:
        try:
            async with asyncio.timeout(DELIVERY):
                delivery = self.deliver(firing)
                if delivery is not None:
                    await delivery
        except Exception:
            log.exception("callback %d of %s fired, but was not delivered", firing.slot, firing.principal)
