"""Store a principal's callbacks, in eight slots. server/state/rows/callback_timer.py fires them."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from toolgate.server.state import flags, tables
from toolgate.server.state.rows.callback_timer import MAX_PAUSE, CallbackTimer
from toolgate.server.state.store import Store
from toolgate.tools.api.context.services import Callback, FiredCallback

SLOTS = 8
LATE_PAUSE = 5.0  # seconds between two looks at a callback that its process should have fired


class CallbackStore:
    """The `Callbacks` of toolgate.tools.api.context.context, for one principal; firings go to `session` first."""

    def __init__(self, store: Store, clock: CallbackTimer, principal: str, session: str) -> None:
        self.store = store
        self.clock = clock
        self.principal = principal
        self.session = session

    async def set(self, message: str, delay: int, repeats: int) -> Callback:
        """Set a callback: `delay` in seconds; `repeats` firings, -1: for ever. Raises OverflowError without a slot."""

        def insert(connection: "tables.Connection") -> Callback:
            used_slots = {callback.id for callback in self._read(connection)}
            free = [slot for slot in range(SLOTS) if slot not in used_slots]
            if not free:
                raise OverflowError
            row = {
                "principal": self.principal,
                "slot": free[0],
                "message": message,
                "delay": delay,
                "left": repeats,
                "next_at": self.clock.now() + delay,
                "session": self.session,
                "process": self.clock.processes.own_name(),
            }
            connection.execute(tables.callback.insert().values(row))
            self.store.set_flag(flags.CALLBACKS, "", True)
            return Callback(free[0], message, delay, delay * 1000, repeats)

        callback = await self.store.transact(insert, alone="callbacks")
        self.clock.wake()
        return callback

    async def list(self) -> Sequence[Callback]:
        if not self.store.has_flag(flags.CALLBACKS, ""):
            return []
        return await self.store.read(self._read)

    async def cancel(self, slot: int | None) -> Sequence[Callback]:
        """Cancel one, or all; return what was cancelled. Raises KeyError for a free slot."""

        def cancel(connection: "tables.Connection") -> Sequence[Callback]:
            callbacks = [callback for callback in self._read(connection) if slot in (None, callback.id)]
            if slot is not None and not callbacks:
                raise KeyError(slot)
            table, slots = tables.callback, [callback.id for callback in callbacks]
            connection.execute(table.delete().where(table.c.principal == self.principal, table.c.slot.in_(slots)))
            return callbacks

        cancelled = await self.store.transact(cancel, alone="callbacks")
        self.clock.wake()
        self.clock.announce(self.principal)
        return cancelled

    async def wait(self, slot: int, message: str, since: float) -> bool:
        """Return True once a callback that was set after `since` has fired, or False if it was cancelled.

        Another process may fire it, without a word: so the rows are read again a second after it is due.
        """

        def look(connection: "tables.Connection") -> tuple[bool, float | None]:
            firing, callback = tables.firing.c, tables.callback.c
            mine = (firing.principal == self.principal) & (firing.slot == slot) & (firing.message == message)
            query = tables.select(firing.id).where(mine, firing.fired_at >= since).limit(1)
            this = (callback.principal == self.principal) & (callback.slot == slot) & (callback.message == message)
            due = connection.execute(tables.select(callback.next_at).where(this)).scalar()
            return connection.execute(query).first() is not None, due

        while True:
            news = self.clock.next_change(self.principal)  # before the look: nothing is missed
            has_fired, due = await self.store.read(look)
            if has_fired or due is None:
                return has_fired
            late = due - self.clock.now()
            await asyncio.wait([news], timeout=min(late, MAX_PAUSE) + 1.0 if late > 0 else LATE_PAUSE)

    def now(self) -> float:
        return self.clock.now()

    async def list_fired(self) -> Sequence[FiredCallback]:
        """Return the stored firings, the newest first."""
        if self.store.is_empty():
            return []

        def read(connection: "tables.Connection") -> Sequence[FiredCallback]:
            firing = tables.firing
            rows = firing.select().where(firing.c.principal == self.principal).order_by(firing.c.id.desc())
            return [
                FiredCallback(row.slot, row.message, datetime.fromtimestamp(row.fired_at, UTC))
                for row in connection.execute(rows)
            ]

        return await self.store.read(read)

    def _read(self, connection: "tables.Connection") -> Sequence[Callback]:
        columns, now = tables.callback.c, self.clock.now()
        rows = tables.callback.select().where(columns.principal == self.principal).order_by(columns.slot)
        return [
            Callback(row.slot, row.message, row.delay, max(0, round((row.next_at - now) * 1000)), row.left)
            for row in connection.execute(rows)
        ]
