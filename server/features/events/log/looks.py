"""Find which of many readers of events have something to read, with two statements for all of them."""

from collections.abc import Collection
from typing import Any

import msgspec

from toolgate.server.features.events.log.rows import FRESH, EventFilter, EventRows, Position
from toolgate.server.state import tables


class EventReaderPlace(msgspec.Struct, frozen=True):
    """What a reader waits for, and the position up to which it has read."""

    wanted: EventFilter
    position: Position


def find_behind(
    rows: EventRows, connection: "tables.Connection", places: Collection[EventReaderPlace]
) -> set[EventReaderPlace]:
    """Return the places that are not at the end of their log, or whose interest is gone or to be renewed."""
    ends = _list_ends(connection, places)
    renewed = _list_interests(connection, places, rows.now() + FRESH * rows.limits.age)
    return {
        place for place in places if place.wanted not in renewed or ends.get(place.wanted.principal) != place.position
    }


def _list_ends(connection: "tables.Connection", places: Collection[EventReaderPlace]) -> dict[str, Position]:
    table = tables.event_log
    principals = {place.wanted.principal for place in places}
    found = connection.execute(table.select().where(table.c.principal.in_(principals)))
    return {row.principal: Position(row.name, row.last) for row in found}


def _list_interests(
    connection: "tables.Connection", places: Collection[EventReaderPlace], until: float
) -> set[EventFilter]:
    """Return what the principals of the places wait for until then or longer."""
    table = tables.event_interest

    def is_named(column: str) -> Any:
        return table.c[column].in_({getattr(place.wanted, column) for place in places})

    named = is_named("principal") & is_named("type") & is_named("arguments")
    found = connection.execute(table.select().where(named, table.c.until >= until))
    return {EventFilter(row.principal, row.type, row.arguments) for row in found}
