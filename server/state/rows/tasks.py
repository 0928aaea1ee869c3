"""Store the tasks of the extension: those that run, and those that ended until they expire.

server/calls/tasks.py runs them and notifies their clients.
"""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import astuple, replace

from toolgate.server.base.task import LIVE, StoredTask
from toolgate.server.state import flags, tables
from toolgate.server.state.live_processes import LiveProcesses
from toolgate.server.state.store import Store
from toolgate.tools.api.errors import ToolError

MAX_LIVE = 64  # running tasks of a principal: a client in a loop must not use up everything
MAX_ENDED = 1_000  # ended tasks of a principal; the oldest that were read make room
MAX_BYTES = 64 * 2**20  # of their outcomes, which a subscription may have to send at once; likewise
REPEATABLE = b"+"  # before what may run again any number of times, as it only waits
COLUMNS = (  # in the order of StoredTask's fields
    *("id", "principal", "process", "status", "message", "created_at", "updated_at", "expires_at"),
    *("outcome", "questions", "read"),
)


class TaskRows:
    """The rows of all tasks in the state.

    now: seconds since the epoch
    server: digest of the options a task depends on; a process with another one would give other outcomes
    record_end: called in the transaction that stores the end of a task
    """

    def __init__(
        self,
        store: Store,
        processes: LiveProcesses,
        now: Callable[[], float],
        server: str,
        record_end: "Callable[[tables.Connection, StoredTask], None] | None" = None,
    ) -> None:
        self.store = store
        self.processes = processes
        self.now = now
        self.server = server
        self._record_end = record_end

    @property
    def is_empty(self) -> bool:
        """Return whether there are no tasks. Costs a stat, and never opens the database."""
        return not self.store.has_flag(flags.TASKS, "")

    async def add(
        self, id: str, principal: str, lifetime: float, again: bytes | None, message: str | None = None
    ) -> StoredTask:
        """Store a new task, which this process runs. Raises ToolError when the principal has too many.

        `again` is what it takes to run the task again, or None where that could do harm. It works once, or with
        REPEATABLE before it after each restart. `message`: the status text.
        """

        def put(connection: "tables.Connection") -> StoredTask:
            self._expire(connection)
            rows = self._rows(connection, principal)
            if sum(row.status in LIVE for row in rows) >= MAX_LIVE:
                raise ToolError(f"{MAX_LIVE} tasks are under way, the most there can be: wait for one, or cancel it")
            if sum(row.status not in LIVE and not row.read for row in rows) >= MAX_ENDED:
                raise ToolError(f"{MAX_ENDED} tasks have ended unread, the most there can be: ask for their results")
            now = self.now()
            task = StoredTask(id, principal, self.processes.own_name(), "working", message, now, now, now + lifetime)
            connection.execute(tables.deferral.insert().values(_to_row(task) | {"again": again, "server": self.server}))
            self.store.set_flag(flags.TASKS, "", True)
            return task

        return await self.store.transact(put, alone="tasks")

    async def save(self, task: StoredTask, otherwise: StoredTask | None = None) -> StoredTask | None:
        """Store a task that has changed, and return what was stored. It is not run again.

        None: it was removed, or another process has taken it over. `otherwise` is stored instead where there is no room
        for the outcome.
        """

        def save(connection: "tables.Connection") -> StoredTask | None:
            has_room = task.is_live or self._make_room(connection, task)
            written = task if has_room or otherwise is None else otherwise
            table = tables.deferral
            this = (table.c.id == task.id) & (table.c.process == task.process)
            changed = connection.execute(table.update().where(this).values({**_to_row(written), "again": None}))
            if changed.rowcount != 1:
                return None
            if not written.is_live and self._record_end is not None:
                self._record_end(connection, written)
            return written

        return await self.store.transact(save, alone="tasks")

    async def mark_read(self, ids: Iterable[str]) -> None:
        """Mark tasks as read by the client: from now on they may be dropped to make room."""

        def read(connection: "tables.Connection") -> None:
            connection.execute(tables.deferral.update().where(tables.deferral.c.id.in_(list(ids))).values(read=True))

        await self.store.transact(read, alone="tasks")  # after what stored them

    async def remove(self, id: str) -> None:
        def drop(connection: "tables.Connection") -> None:
            connection.execute(tables.deferral.delete().where(tables.deferral.c.id == id))

        await self.store.transact(drop, alone="tasks")  # after what stored it

    async def find(self, principal: str, ids: Iterable[str]) -> tuple[list[StoredTask], bool]:
        """Return the principal's tasks, expired ones too, and whether one is of a dead process of this `server`."""

        def find(connection: "tables.Connection") -> list[Any]:
            table = tables.deferral
            mine = (table.c.principal == principal) & table.c.id.in_(list(ids))
            return list(connection.execute(table.select().where(mine)))

        rows = await self.store.read(find)
        ours = {row.process for row in rows if row.status in LIVE and row.server == self.server}
        return [_from_row(row) for row in rows], bool(ours and await self.processes.find_dead(ours))

    async def adopt(self, serves: Callable[[str], bool]) -> list[tuple[StoredTask, bytes | None]]:
        """Take over the running tasks of dead processes of this `server`. Return each with how to run it again."""
        table = tables.deferral
        mine = table.c.status.in_(LIVE) & (table.c.server == self.server)

        def list_owners(connection: "tables.Connection") -> list[str]:
            return list(connection.execute(tables.select(table.c.process).where(mine).distinct()).scalars())

        dead = await self.processes.find_dead(await self.store.read(list_owners))

        def adopt(connection: "tables.Connection") -> list[tuple[StoredTask, bytes | None]]:
            self._expire(connection)
            if not dead:
                return []
            own = self.processes.own_name()
            rows = connection.execute(table.select().where(mine, table.c.process.in_(sorted(dead)))).all()
            orphaned = [row for row in rows if serves(row.principal)]
            repeatable = [row.id for row in orphaned if (row.again or b"").startswith(REPEATABLE)]
            others = [row.id for row in orphaned if row.id not in repeatable]
            claimed = set[str]()
            # the others not a third time: a task that kills the server must not do so for ever
            for ids, change in ((repeatable, {"process": own}), (others, {"process": own, "again": None})):
                still = table.c.id.in_(ids) & table.c.process.in_(sorted(dead)) & mine
                claim = table.update().where(still).values(change).returning(table.c.id)
                claimed |= set(connection.execute(claim).scalars())
            adopted = [row for row in orphaned if row.id in claimed]
            return [(replace(_from_row(row), process=own), row.again) for row in adopted]

        return await self.store.transact(adopt, alone="tasks")

    def _expire(self, connection: "tables.Connection") -> None:
        table = tables.deferral
        connection.execute(table.delete().where(table.c.expires_at <= self.now()))
        if connection.execute(table.select().with_only_columns(table.c.id).limit(1)).first() is None:
            self.store.set_flag(flags.TASKS, "", False)

    def _make_room(self, connection: "tables.Connection", task: StoredTask) -> bool:
        """Return whether there is room for the outcome of `task`. The oldest tasks that were read make room."""
        ended = [row for row in self._rows(connection, task.principal) if row.status not in LIVE and row.id != task.id]
        count, size = len(ended) + 1, len(task.outcome or b"") + sum(row.size or 0 for row in ended)
        surplus = list[str]()
        for row in ended:
            if row.read and (count > MAX_ENDED or size > MAX_BYTES):
                count, size = count - 1, size - (row.size or 0)
                surplus.append(row.id)
        if size > MAX_BYTES:
            return False  # removing them would not help
        table = tables.deferral
        connection.execute(table.delete().where(table.c.id.in_(surplus)))
        return True

    def _rows(self, connection: "tables.Connection", principal: str) -> list[Any]:
        """Return the principal's tasks without their outcomes, the first to end first."""
        table = tables.deferral
        mine = table.select().where(table.c.principal == principal).order_by(table.c.updated_at)
        size = tables.func.length(table.c.outcome).label("size")
        return list(connection.execute(mine.with_only_columns(table.c.id, table.c.status, table.c.read, size)))


def _to_row(task: StoredTask) -> dict[str, Any]:
    return dict(zip(COLUMNS, astuple(task), strict=True))


def _from_row(row: Any) -> StoredTask:
    return StoredTask(*(getattr(row, column) for column in COLUMNS))
