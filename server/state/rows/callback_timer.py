"""Fire callbacks when they are due, each firing once however many processes share the state.

A callback belongs to the process that set it, which has the session. Another process takes it over once that one is
dead. Time is the wall clock's, so it means the same after a restart. The cadence is fixed: a late firing does not move
the next one. Of the firings missed in a pause, one is made up for.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from toolgate.server.base.errors import StateError
from toolgate.server.state import flags
from toolgate.server.state.live_processes import LiveProcesses
from toolgate.server.state.rows.due_callbacks import DueCallbacks, RecordFiring
from toolgate.server.state.rows.due_callbacks import Firing as Firing
from toolgate.server.state.store import Store

MAX_PAUSE = 60.0  # seconds at most between two runs: to see a clock jump, the end of a suspension, or a dead owner
AGAIN = 2.0  # seconds between two tries while the state can't be used: what is due fires soon after it can
DELIVERY = 5.0  # seconds a delivery may take: the others wait behind it

log = logging.getLogger(__name__)


def serves_everyone(_principal: str) -> bool:
    return True


class CallbackTimer:
    """Fires the callbacks of one process, by `deliver`.

    serves: whether a principal can come back to this process; its callbacks are taken over from a dead one
    now: seconds since the epoch
    processes: those that share the state; None: those with the same state folder
    record: called in the transaction that fires a callback, with the firing's number
    """

    def __init__(
        self,
        store: Store,
        deliver: Callable[[Firing], Awaitable[None] | None],
        serves: Callable[[str], bool] = serves_everyone,
        now: Callable[[], float] | None = None,
        processes: LiveProcesses | None = None,
        record: RecordFiring | None = None,
    ) -> None:
        self.store = store
        self.deliver = deliver
        self.now = now or store.now
        self.processes = processes or store.open_processes()
        self._due = DueCallbacks(store, self.processes, serves, self.now)
        self._record = record
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
                if self.store.has_flag(flags.CALLBACKS, ""):
                    pause = await self.fire_due()
            except StateError as error:
                log.warning("callbacks can't fire, the next try is in %d s: %s", AGAIN, error)
                pause = AGAIN
            except Exception:
                log.exception("callbacks can't fire; the next try is in %d s", MAX_PAUSE)
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def fire_due(self) -> float:
        """Fire what is due now, and return the seconds until the next run."""
        firings, soonest = await self._due.claim(self._record)
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
