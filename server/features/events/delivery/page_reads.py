"""Read pages of events for streams: those that ask for the same page share one read."""

import asyncio
from collections.abc import Collection
from typing import Any

import msgspec

from toolgate.server.features.events.log.cursors import CursorCoder
from toolgate.server.features.events.log.format import format_event
from toolgate.server.features.events.log.log import EventLog
from toolgate.server.features.events.log.looks import EventReaderPlace, find_behind
from toolgate.server.features.events.log.rows import EventFilter, EventPage, LoggedEvent, Position

PAGE = 100  # events that are read together

PageKey = tuple[EventFilter, Position | None, float]


class StreamPage(msgspec.Struct, frozen=True):
    """A page of events, and each as a stream sends it."""

    page: EventPage
    events: list[dict[str, Any]]


class PageReads:
    """The reads of one server's streams.

    A stream joins a read of another only if nothing happened since it began: it would miss that.
    """

    def __init__(self, log: EventLog, cursors: CursorCoder) -> None:
        self._log = log
        self._cursors = cursors
        self._under_way: dict[PageKey, asyncio.Task[StreamPage]] = {}

    async def read(self, wanted: EventFilter, after: Position | None, not_before: float) -> StreamPage:
        """Return a page after a position, or the present position without one. Raises StateError."""
        key = wanted, after, not_before
        read = self._under_way.get(key)
        if read is None:
            read = self._under_way[key] = asyncio.get_running_loop().create_task(self._read(*key))
            read.add_done_callback(lambda read: self._forget(key, read))
        return await asyncio.shield(read)  # a stream that ends does not end the read of the others

    async def find_behind(self, places: Collection[EventReaderPlace]) -> Collection[EventReaderPlace]:
        """Return the places with something to read, also of what another process has recorded. Raises StateError."""
        return await self._log.store.read(lambda connection: find_behind(self._log.rows, connection, places))

    def note_news(self, principal: str, type: str) -> None:
        """Let later streams join no read that began before an event."""
        for key in [key for key in self._under_way if (key[0].principal, key[0].type) == (principal, type)]:
            del self._under_way[key]

    def forget_all(self) -> None:
        """Let later streams join none of the reads that have begun."""
        self._under_way.clear()

    async def _read(self, wanted: EventFilter, after: Position | None, not_before: float) -> StreamPage:
        rows = self._log.rows
        page = await self._log.store.read(
            lambda connection: rows.peek_page(connection, wanted, after, PAGE, not_before)
        )
        if page is None:
            page = await self._log.read_page(wanted, after, PAGE, not_before)
        return StreamPage(page, [self._format(wanted.principal, page.position.log, found) for found in page.events])

    def _format(self, principal: str, log: str, found: LoggedEvent) -> dict[str, Any]:
        return format_event(found, self._cursors.format_cursor(principal, Position(log, found.number)))

    def _forget(self, key: PageKey, read: "asyncio.Task[StreamPage]") -> None:
        if self._under_way.get(key) is read:
            del self._under_way[key]
        if not read.cancelled():
            read.exception()  # every stream may have ended meanwhile
