"""Record events in the order in which they come, many in one transaction, and try again until they are stored.

Events wait while the database can't be written. Beyond MAX_WAITING of a principal, or at the end of the server, they
are lost: then their readers learn of a gap. `gap_notes.py` keeps that for the next server.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from toolgate.server.base.errors import StateError
from toolgate.server.features.events.log.gap_notes import Gap, GapNotes
from toolgate.server.features.events.log.rows import EventRows, Occurrence
from toolgate.server.state.store import Store

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection

BATCH = 50  # events of one principal in one transaction: some 30 ms
MAX_WAITING = 20_000  # events of one principal that wait: as many as its log holds by default
MAX_BYTES = 64 * 2**20  # bytes of payloads that wait, of all principals
LATE = 0.25  # seconds of one write, after which the events that wait are noted as a gap to be
PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)  # seconds before the next try

log = logging.getLogger("toolgate.events")


class WaitingEvent(msgspec.Struct, frozen=True, eq=False):
    """An event that waits. The result of `stored` is whether it was stored; else it is lost. `is_durable`: its source
    tells of it again after a restart, so its loss here is no gap."""

    occurrence: Occurrence
    stored: "asyncio.Future[bool]"
    is_durable: bool

    @property
    def gap(self) -> Gap:
        return self.occurrence.principal, self.occurrence.type


class EventWriter:
    """The events of one server that are not stored yet. `announce(principal, type)` is called for those that are."""

    def __init__(self, store: Store, rows: EventRows, announce: Callable[[str, str], None]) -> None:
        self._store = store
        self._rows = rows
        self._announce = announce
        self._waiting: dict[str, deque[WaitingEvent]] = {}  # by principal; the first one is the next to write
        self._bytes = 0
        self._gaps: dict[Gap, None] = {}  # to be noted in the logs
        self._notes = GapNotes(store.folder)
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def add(self, occurrence: Occurrence, *, is_durable: bool = False) -> "asyncio.Future[bool]":
        """Record an event as soon as possible. Return whether it was stored, once that is known."""
        waiting = WaitingEvent(occurrence, asyncio.get_running_loop().create_future(), is_durable)
        own = self._waiting.get(occurrence.principal, ())
        size = len(occurrence.data)
        if self._is_closed:
            self._lose(waiting)
        elif not is_durable and (len(own) >= MAX_WAITING or self._bytes + size > MAX_BYTES):
            if waiting.gap not in self._gaps:
                log.warning("events %s of %s are lost: %d others wait", occurrence.type, occurrence.principal, len(own))
            self._gaps[waiting.gap] = None
            waiting.stored.set_result(False)
        else:
            self._waiting.setdefault(occurrence.principal, deque()).append(waiting)
            self._bytes += size
        self._start()
        return waiting.stored

    def note_earlier_gaps(self) -> None:
        """Tell the readers of what an earlier server could not write."""
        self._gaps.update(dict.fromkeys(self._notes.read()))
        self._start()
        if self._task is None:  # no note could be read
            self._notes.clear()

    async def close(self, within: float) -> None:
        """Wait so many seconds at most for what waits. The rest is a gap, which the next server tells."""
        self._is_closed = True
        if (task := self._task) is None:
            return
        await asyncio.wait([task], timeout=within)
        if not task.done():
            self._write_notes()
            task.cancel()
            await asyncio.wait([task])
        for waiting in self._list_waiting():
            waiting.stored.set_result(False)

    def note_gap(self, gap: Gap) -> None:
        """Tell the readers of a type that events are lost, no later than what comes next."""
        self._gaps[gap] = None
        self._start()

    def _lose(self, waiting: WaitingEvent) -> None:
        """Lose an event at the end of the server."""
        if not waiting.is_durable:
            self._gaps[waiting.gap] = None
            self._write_notes()
        waiting.stored.set_result(False)

    def _start(self) -> None:
        if self._task is None and not self._is_closed and (self._waiting or self._gaps):
            self._task = asyncio.get_running_loop().create_task(self._write_all())

    async def _write_all(self) -> None:
        failures = 0
        while self._waiting or self._gaps:
            batch, gaps = self._choose_batch(), list(self._gaps)
            try:
                await self._write(batch, gaps)
                failures = 0
            except StateError as error:
                if failures == 0:
                    log.warning("events wait for the state: %s", error)
                self._write_notes()
                await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
                failures += 1
            except Exception:  # a fault of ours must not hold what comes later
                log.exception("events are lost")
                self._forget(batch, gaps, are_stored=False)
                self._gaps.update(dict.fromkeys(each.gap for each in batch))
        self._notes.clear()
        self._task = None  # now, not in a callback: the next event must start another

    def _choose_batch(self) -> list[WaitingEvent]:
        """Return the next events of one principal. Principals take turns."""
        if not self._waiting:
            return []
        principal = next(iter(self._waiting))
        own = self._waiting[principal] = self._waiting.pop(principal)
        return list(islice(own, BATCH))

    async def _write(self, batch: list[WaitingEvent], gaps: list[Gap]) -> None:
        occurrences = [each.occurrence for each in batch]
        work = self._store.transact(partial(self._record, occurrences, gaps), alone="events")
        writing = asyncio.ensure_future(work)
        try:
            await asyncio.wait([writing], timeout=LATE)
            if not writing.done():
                self._write_notes()
            news = await writing
        finally:
            writing.cancel()
        self._forget(batch, gaps, are_stored=True)
        for principal, type in news:
            self._announce(principal, type)

    def _record(self, occurrences: list[Occurrence], gaps: list[Gap], connection: "Connection") -> list[Gap]:
        """Return whose readers have news. In the store's thread."""
        for principal, type in gaps:
            self._rows.note_gaps(connection, principal, type)
        principal = occurrences[0].principal if occurrences else ""
        stored = self._rows.record_all(connection, principal, occurrences)
        return list(dict.fromkeys([*gaps, *((principal, each.type) for each in stored)]))

    def _forget(self, batch: Iterable[WaitingEvent], gaps: Iterable[Gap], *, are_stored: bool) -> None:
        for gap in gaps:
            self._gaps.pop(gap, None)
        for each in batch:
            principal = each.occurrence.principal
            own = self._waiting[principal]
            own.popleft()
            if not own:
                del self._waiting[principal]
            self._bytes -= len(each.occurrence.data)
            if not each.stored.done():
                each.stored.set_result(are_stored)

    def _write_notes(self) -> None:
        self._notes.write([*self._gaps, *(each.gap for each in self._list_waiting() if not each.is_durable)])

    def _list_waiting(self) -> Iterable[WaitingEvent]:
        return (each for own in self._waiting.values() for each in own)
