"""Claim the callbacks of one process as they fall due, and adopt those of dead processes.

A look reads what is due, by an index, however many callbacks wait.
"""

from collections.abc import Callable
from functools import partial

import msgspec

from toolgate.server.state import flags, tables
from toolgate.server.state.live_processes import LiveProcesses
from toolgate.server.state.store import Store

MAX_REMEMBERED = 50  # firings stored of a principal: a list a model can still read
PIECE = 100  # callbacks of one transaction: it takes some 20 ms
TOLERANCE = 1.0  # seconds: a measured clock goes back a little now and then, and a callback may be as late
NEVER = float("inf")


class Firing(msgspec.Struct, frozen=True):
    """A callback that is due."""

    principal: str
    session: str  # the place's key of the session that set it, which may have ended; "" where there was none
    slot: int
    message: str
    remaining: int  # firings still to come; -1 for ever


RecordFiring = Callable[["tables.Connection", Firing, int], None]
Place = tuple[float, str, int]  # of a callback among those of a process: its next time, principal and slot


class DueCallbacks:
    """The callbacks that this process fires.

    - `serves`: whether a principal can come back to this process; its callbacks are taken over from a dead one
    - `now`: seconds since the epoch
    """

    def __init__(
        self, store: Store, processes: LiveProcesses, serves: Callable[[str], bool], now: Callable[[], float]
    ) -> None:
        self._store = store
        self._processes = processes
        self._serves = serves
        self._now = now
        self._latest = NEVER  # time of a look: an earlier one after it shows that the clock was set back
        self._searched = set[str]()  # dead processes whose callbacks are here, or of principals served elsewhere

    async def claim(self, record: "RecordFiring | None" = None) -> tuple[list[Firing], float]:
        """Return what is due, with its next time already stored; and when the next one is due.

        - `record` is called in the transaction that fires, with the firing's number

        There is more at once if that time has come.
        """
        await self._adopt()
        firings, soonest, now = await self._store.transact(partial(self._claim, record), alone="callbacks")
        self._latest = max(now, self._latest) if self._latest - TOLERANCE <= now else now
        return firings, soonest

    async def _adopt(self) -> None:
        """Make the callbacks of dead processes this one's."""
        dead = await self._processes.find_dead(await self._store.read(_list_owners))
        self._searched &= dead  # one that was only away may set more
        for process in dead - self._searched:
            place: Place | None = (-NEVER, "", 0)
            while place is not None:
                place = await self._store.transact(partial(self._adopt_piece, process, place), alone="callbacks")
            self._latest = NEVER  # their times are not checked yet
            self._searched.add(process)

    def _adopt_piece(self, process: str, after: Place, connection: "tables.Connection") -> Place | None:
        """Adopt some callbacks of a dead process. Return the place of the last that was read, or None at the end."""
        table, columns = tables.callback, tables.callback.c
        key = columns.next_at, columns.principal, columns.slot
        rest = tables.select(*key).where(columns.process == process, tables.tuple_(*key) > after)
        rows = connection.execute(rest.order_by(*key).limit(PIECE)).all()
        served = [{"of": row.principal, "at": row.slot} for row in rows if self._serves(row.principal)]
        this = (columns.principal == tables.bindparam("of")) & (columns.slot == tables.bindparam("at"))
        if served:
            still = table.update().where(this, columns.process == process)
            connection.execute(still.values(process=self._processes.own_name()), served)
        return (rows[-1].next_at, rows[-1].principal, rows[-1].slot) if len(rows) == PIECE else None

    def _claim(
        self, record: "RecordFiring | None", connection: "tables.Connection"
    ) -> tuple[list[Firing], float, float]:
        columns, now = tables.callback.c, self._now()
        if connection.execute(tables.select(columns.slot).limit(1)).first() is None:
            self._store.set_flag(flags.CALLBACKS, "", False)
            return [], NEVER, now
        own = columns.process == self._processes.own_name()
        if now < self._latest - TOLERANCE:  # nothing may be further away than its delay
            too_far = tables.callback.update().where(own, columns.next_at > now + columns.delay)
            connection.execute(too_far.values(next_at=now + columns.delay))
        due = tables.callback.select().where(own, columns.next_at <= now).order_by(columns.next_at).limit(PIECE)
        firings = [_advance(connection, row, now) for row in connection.execute(due).all()]
        _remember(connection, firings, now, record)
        soonest = connection.execute(tables.select(tables.func.min(columns.next_at)).where(own)).scalar()
        return firings, NEVER if soonest is None else float(soonest), now


def _list_owners(connection: "tables.Connection") -> list[str]:
    """Return the processes that have callbacks."""
    return tables.list_distinct(connection, tables.callback.c.process)


def _advance(connection: "tables.Connection", row: "tables.Row[tuple[object, ...]]", now: float) -> Firing:
    """Store a due callback as it is after `now`, and return its firing."""
    table, columns = tables.callback, tables.callback.c
    remaining = row.left - 1 if row.left > 0 else row.left
    this = (columns.principal == row.principal) & (columns.slot == row.slot)
    if remaining == 0:
        connection.execute(table.delete().where(this))
    else:
        next_at = row.next_at + row.delay * ((now - row.next_at) // row.delay + 1)  # on its grid
        connection.execute(table.update().where(this).values(next_at=next_at, left=remaining))
    return Firing(row.principal, row.session, row.slot, row.message, remaining)


def _remember(
    connection: "tables.Connection", firings: list[Firing], now: float, record: "RecordFiring | None"
) -> None:
    """Store what fires, and remove all but the newest firings.

    `record` locks the principal's log of events: all who lock several do it in the order of principals.
    """
    firing = tables.firing
    for fired in sorted(firings, key=lambda fired: fired.principal):
        row = {"principal": fired.principal, "slot": fired.slot, "message": fired.message, "fired_at": now}
        key = connection.execute(firing.insert().values(row)).inserted_primary_key
        if record is not None and key is not None:
            record(connection, fired, int(key[0]))
    for principal in {fired.principal for fired in firings}:
        mine = firing.c.principal == principal
        newest = tables.select(firing.c.id).where(mine).order_by(firing.c.id.desc()).limit(MAX_REMEMBERED)
        connection.execute(firing.delete().where(mine, firing.c.id.not_in(newest)))
