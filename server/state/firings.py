"""Claim the callbacks that are due, in one transaction for all processes of a state."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolgate.server.state import tables
from toolgate.server.state.live_processes import ProcessRegistry
from toolgate.server.state.store import Store

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

PENDING = "callbacks"  # flag: a principal has a callback
MAX_REMEMBERED = 50  # firings stored of a principal: a list a model can still read


@dataclass(frozen=True, slots=True)
class Firing:
    """A callback that is due."""

    principal: str
    session: str  # the place's key of the session that set it, which may have ended; "" where there was none
    slot: int
    message: str
    remaining: int  # firings still to come; -1 for ever


async def claim_due(
    store: Store, processes: ProcessRegistry, serves: Callable[[str], bool], now: Callable[[], float]
) -> tuple[list[Firing], float]:
    """Return what is due for this process, with its next time already stored; and when the next one is due.

    A callback belongs to its process. One of a dead process becomes this one's, if it `serves` the principal.
    """

    def advance_all(connection: "Connection") -> tuple[list[Firing], float]:
        rows = connection.execute(tables.callback.select()).all()
        if not rows:
            store.set_flag(PENDING, "", False)
            return [], float("inf")
        time, own = now(), processes.own_name()
        alive = {name for name in {row.process for row in rows} if name != own and processes.is_alive(name)}
        mine = [row for row in rows if row.process == own or (row.process not in alive and serves(row.principal))]
        advanced = [_advance(connection, row, own, time) for row in mine]
        _remember(connection, [firing for firing, _ in advanced if firing], time)
        return [firing for firing, _ in advanced if firing], min(
            (next_at for _, next_at in advanced), default=float("inf")
        )

    return await store.transact(advance_all)


def _advance(
    connection: "Connection", row: "Row[tuple[object, ...]]", own: str, now: float
) -> tuple[Firing | None, float]:
    """Store the callback as it is after `now`. Return its firing, if it is due, and its next time."""
    columns = tables.callback.c
    is_due = row.next_at <= now
    remaining = row.left - 1 if is_due and row.left > 0 else row.left
    next_at = _next(row.next_at, row.delay, now)
    this = (columns.principal == row.principal) & (columns.slot == row.slot) & (columns.next_at == row.next_at)
    if remaining == 0:
        connection.execute(tables.callback.delete().where(this))
        next_at = float("inf")
    elif (next_at, own) != (row.next_at, row.process):
        change = {"next_at": next_at, "left": remaining, "process": own}
        connection.execute(tables.callback.update().where(this).values(change))
    return Firing(row.principal, row.session, row.slot, row.message, remaining) if is_due else None, next_at


def _remember(connection: "Connection", firings: list[Firing], now: float) -> None:
    """Store what fires, and remove all but the newest firings."""
    firing = tables.firing
    for fired in firings:
        row = {"principal": fired.principal, "slot": fired.slot, "message": fired.message, "fired_at": now}
        connection.execute(firing.insert().values(row))
    for principal in {fired.principal for fired in firings}:
        mine = firing.c.principal == principal
        newest = (
            firing.select()
            .with_only_columns(firing.c.id)
            .where(mine)
            .order_by(firing.c.id.desc())
            .limit(MAX_REMEMBERED)
        )
        connection.execute(firing.delete().where(mine, firing.c.id.not_in(newest)))


def _next(next_at: float, delay: int, now: float) -> float:
    """Return the first time after `now` on the grid that `next_at` and `delay` span."""
    if next_at > now + delay:  # the clock was set back: nothing may be further away than its delay
        return now + delay
    if next_at > now:
        return next_at
    return next_at + delay * ((now - next_at) // delay + 1)
