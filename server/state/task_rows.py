"""The deferred calls in the state database: those under way, and those that ended until they expire. Knows nothing of
tools, or of who is told: see server/calls/tasks.py.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from toolgate.server.state import tables
from toolgate.server.state.live_processes import ProcessRegistry
from toolgate.server.state.store import Store
from toolgate.tools import ToolError

if TYPE_CHECKING:
    from sqlalchemy import Connection

FLAG = "deferrals"  # flag: there are some, under way or ended
LIVE = ("working", "input_required")
MAX_LIVE = 64  # under way, of a principal: a client in a loop must not take all there is
MAX_ENDED = 1_000  # of a principal; the oldest that were read make room
MAX_BYTES = 64 * 2**20  # of what those came to, which a subscription may have to tell at once; likewise


@dataclass(frozen=True, slots=True)
class StoredTask:
    """A deferred call. Times are seconds since the epoch; what is `bytes` is JSON, as the wire has it.

    `outcome` is the result of one that is completed, the error of one that failed. `process` is the name of the one
    that does the work; `read` says whether the client has seen how it ended.
    """

    id: str
    principal: str
    process: str
    status: str
    message: str | None
    created: float
    updated: float
    expires: float
    outcome: bytes | None = None
    questions: bytes | None = None
    read: bool = False

    @property
    def is_live(self) -> bool:
        return self.status in LIVE


class TaskRows:
    """`now` is in seconds since the epoch. `server` says what this process does its work with: one of another `server`
    on the same state would do other work."""

    def __init__(self, store: Store, processes: ProcessRegistry, now: Callable[[], float], server: str) -> None:
        self.store = store
        self.processes = processes
        self.now = now
        self.server = server

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to look for. Costs a stat, and never opens the database."""
        return not self.store.has_flag(FLAG, "")

    async def add(self, id: str, principal: str, lifetime: float, again: bytes | None) -> StoredTask:
        """Keep a new one, which this process works on. `again` says how to do the work once more, and is None where
        that could do harm. Raises ToolError when the principal has too many, or has read too few."""

        def put(connection: "Connection") -> StoredTask:
            self._expire(connection)
            rows = self._rows(connection, principal)
            if sum(row.status in LIVE for row in rows) >= MAX_LIVE:
                raise ToolError(f"{MAX_LIVE} tasks are under way, the most there can be: wait for one, or cancel it")
            if sum(row.status not in LIVE and not row.read for row in rows) >= MAX_ENDED:
                raise ToolError(f"{MAX_ENDED} tasks have ended unread, the most there can be: ask for their results")
            now = self.now()
            kept = StoredTask(id, principal, self.processes.own_name(), "working", None, now, now, now + lifetime)
            connection.execute(
                tables.deferral.insert().values({**_to_row(kept), "again": again, "server": self.server})
            )
            self.store.set_flag(FLAG, "", True)
            return kept

        return await self.store.transact(put)

    async def save(self, kept: StoredTask, otherwise: StoredTask | None = None) -> StoredTask:
        """Write down what has changed, after which it is not to be run again; nothing happens when it is no longer
        kept. Where there is no room for what it came to, write down `otherwise`. What was written."""

        def save(connection: "Connection") -> StoredTask:
            has_room = kept.is_live or self._make_room(connection, kept)
            written = kept if has_room or otherwise is None else otherwise
            of = tables.deferral
            connection.execute(of.update().where(of.c.id == kept.id).values({**_to_row(written), "again": None}))
            return written

        return await self.store.transact(save)

    async def mark_read(self, ids: Iterable[str]) -> None:
        """The client has seen how these ended: from now on they may make room."""

        def read(connection: "Connection") -> None:
            of = tables.deferral
            connection.execute(of.update().where(of.c.id.in_(list(ids))).values(read=True))

        await self.store.transact(read)

    async def remove(self, id: str) -> None:
        def drop(connection: "Connection") -> None:
            of = tables.deferral
            connection.execute(of.delete().where(of.c.id == id))

        await self.store.transact(drop)

    async def find(self, principal: str, ids: Iterable[str]) -> tuple[list[StoredTask], bool]:
        """Those of the principal that are there, expired ones too, and whether a process of this `server` that is dead
        left one of them behind."""

        def find(connection: "Connection") -> tuple[list[StoredTask], bool]:
            of = tables.deferral
            mine = (of.c.principal == principal) & of.c.id.in_(list(ids))
            rows = connection.execute(of.select().where(mine)).all()
            ours = {row.process for row in rows if row.status in LIVE and row.server == self.server}
            return [_from_row(row) for row in rows], any(not self.processes.is_alive(name) for name in ours)

        return await self.store.transact(find)

    async def adopt(self, serves: Callable[[str], bool]) -> list[tuple[StoredTask, bytes | None]]:
        """Take over what dead processes of this `server` left under way: each as it is from now on, and how to run it
        again."""

        def adopt(connection: "Connection") -> list[tuple[StoredTask, bytes | None]]:
            self._expire(connection)
            of = tables.deferral
            own = self.processes.own_name()
            rows = connection.execute(of.select().where(of.c.status.in_(LIVE) & (of.c.server == self.server))).all()
            dead = {name for name in {row.process for row in rows} if not self.processes.is_alive(name)}
            left = [row for row in rows if row.process in dead and serves(row.principal)]
            ids = [row.id for row in left]
            # not a third time: what kills a server must not kill it for ever
            connection.execute(of.update().where(of.c.id.in_(ids)).values(process=own, again=None))
            return [(replace(_from_row(row), process=own), row.again) for row in left]

        return await self.store.transact(adopt)

    def _expire(self, connection: "Connection") -> None:
        of = tables.deferral
        connection.execute(of.delete().where(of.c.expires_at <= self.now()))
        if connection.execute(of.select().with_only_columns(of.c.id).limit(1)).first() is None:
            self.store.set_flag(FLAG, "", False)

    def _make_room(self, connection: "Connection", kept: StoredTask) -> bool:
        """Whether there is room for what `kept` came to; where it takes that, the oldest of those that were read go."""
        ended = [row for row in self._rows(connection, kept.principal) if row.status not in LIVE and row.id != kept.id]
        count, size = len(ended) + 1, len(kept.outcome or b"") + sum(row.size or 0 for row in ended)
        surplus = list[str]()
        for row in ended:
            if row.read and (count > MAX_ENDED or size > MAX_BYTES):
                count, size = count - 1, size - (row.size or 0)
                surplus.append(row.id)
        if size > MAX_BYTES:
            return False  # they would go for nothing
        of = tables.deferral
        connection.execute(of.delete().where(of.c.id.in_(surplus)))
        return True

    def _rows(self, connection: "Connection", principal: str) -> list[Any]:
        """What there is of the principal's, without what it holds; what ended first comes first."""
        of = tables.deferral
        mine = of.select().where(of.c.principal == principal).order_by(of.c.updated_at)
        size = tables.func.length(of.c.outcome).label("size")
        return list(connection.execute(mine.with_only_columns(of.c.id, of.c.status, of.c.read, size)))


def _to_row(kept: StoredTask) -> dict[str, Any]:
    return {
        "id": kept.id,
        "principal": kept.principal,
        "process": kept.process,
        "status": kept.status,
        "message": kept.message,
        "created_at": kept.created,
        "updated_at": kept.updated,
        "expires_at": kept.expires,
        "outcome": kept.outcome,
        "questions": kept.questions,
        "read": kept.read,
    }


def _from_row(row: Any) -> StoredTask:
    return StoredTask(
        row.id,
        row.principal,
        row.process,
        row.status,
        row.message,
        row.created_at,
        row.updated_at,
        row.expires_at,
        row.outcome,
        row.questions,
        row.read,
    )
