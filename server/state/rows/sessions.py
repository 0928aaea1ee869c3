"""Store the sessions of Streamable HTTP, so that clients resume them after a restart.

A row is named by the digest of the session's id, so it opens no session. It belongs to the process that has the session
open. Once that one is dead, the process that the client comes to takes it over. transports/http/sessions/sessions.py
decides which clients may resume a session.
"""

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from toolgate.server.base.errors import StateError
from toolgate.server.state import flags, tables
from toolgate.server.state.batch import WriteBatch
from toolgate.server.state.live_processes import LiveProcesses
from toolgate.server.state.sqlite.database import describe_error
from toolgate.server.state.store import Store
from toolgate.tools.api.context.services import PlanState
from toolgate.tools.api.text.json_text import JsonError, decode_json

if TYPE_CHECKING:
    import asyncio

MAX_DETAILS = 64 * 2**10  # bytes: a client may send megabytes of capabilities and subscriptions

log = logging.getLogger(__name__)


class SessionDetails(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is stored of a session besides its owner."""

    name: str  # of the client
    revision: str
    capabilities: dict[str, Any]
    log_level: Annotated[int, Meta(ge=0, le=7)] | None
    subscribed: list[str]  # URIs of resources
    workspace: str
    cwd: bytes | None
    plan: PlanState | None
    grants: list[str] = []  # their tokens used the session
    scopes: list[str] | None = None  # of any of these grants, with implied ones


class SessionGrants(msgspec.Struct, frozen=True):
    """The part of the details that is read at the start."""

    grants: list[str] = []


class StoredSession(msgspec.Struct, frozen=True):
    """A session that no living process has open. `process` had it open last."""

    id: str
    process: str
    issuer: str
    subject: str
    client: str
    seen_at: float  # in seconds since the epoch
    grants: Sequence[str] = ()  # none: there is no grant


class StoredEvent(msgspec.Struct, frozen=True):
    """A message for the client: event `number` of `stream`, or of no stream yet where that is ""."""

    stream: str
    number: int
    data: bytes


class ResumedSession(msgspec.Struct, frozen=True):
    """A session that was taken over, with its undelivered messages."""

    details: SessionDetails
    began_at: float
    messages: Sequence[StoredEvent]


class SessionRecords:
    """The rows of sessions. A working directory counts in the same `workspace` only. `now`: seconds since the epoch."""

    def __init__(
        self, store: Store, processes: LiveProcesses, workspace: str, now: Callable[[], float] | None = None
    ) -> None:
        self.workspace = workspace
        self.now = now or store.now
        self._store = store
        self._processes = processes
        self._batch = WriteBatch(store)

    async def list_orphaned(self, idle: float, most: int) -> list[StoredSession]:
        """Return the sessions of dead processes, the longest idle first, and remove the others. Raises StateError.

        Of those used in the last `idle` seconds, it is the `most` that were used last.
        """
        if not self._store.has_flag(flags.SESSIONS, ""):
            return []
        dead = await self._processes.find_dead(await self._store.read(_list_processes))
        return await self._store.transact(partial(self._recall, idle, most, dead), alone="sessions")

    def add(self, id: str, owner: tuple[str, str, str], details: bytes) -> "asyncio.Future[None]":
        """Store a new session; `owner` is its issuer, subject and client."""
        issuer, subject, client = owner

        def insert(connection: "tables.Connection") -> None:
            now = self.now()
            row: dict[str, Any] = {"id": id, "issuer": issuer, "subject": subject, "client": client, "details": details}
            row |= {"process": self._processes.own_name(), "began_at": now, "seen_at": now}
            connection.execute(tables.session.insert(), row)
            if not self._store.has_flag(flags.SESSIONS, ""):
                self._store.set_flag(flags.SESSIONS, "", True)

        return self._batch.add(insert)

    def update(self, id: str, details: bytes) -> "asyncio.Future[None]":
        """Store new details, unless the session was removed."""

        def change(connection: "tables.Connection") -> None:
            connection.execute(tables.session.update().where(tables.session.c.id == id).values(details=details))

        return self._batch.add(change)

    def remove(self, ended: Mapping[str, str]) -> "asyncio.Future[None]":
        """Remove sessions that ended, unless another process has taken them over.

        `ended`: id → the process that had it open last, "" for this one.
        """
        gone = dict(ended)

        def drop(connection: "tables.Connection") -> None:
            own = self._processes.own_name()
            _remove_sessions(connection, [(id, holder) for id, process in gone.items() for holder in {process, own}])

        return self._batch.add(drop)

    def mark_seen(self, seen: Mapping[str, float]) -> "asyncio.Future[None]":
        """Store when each was last used, in seconds since the epoch."""
        return self._batch.add(partial(_see, seen))

    def save_pending(
        self, seen: Mapping[str, float], messages: Mapping[str, Sequence[StoredEvent]]
    ) -> "asyncio.Future[None]":
        """Store what the next process needs, at the end of this one."""

        def leave(connection: "tables.Connection") -> None:
            _see(seen, connection)
            table = tables.session_message
            old = table.delete().where(table.c.session == tables.bindparam("of"))
            _each(connection, old, [{"of": id} for id in messages])
            rows = [
                {"session": id, "stream": event.stream, "number": event.number, "data": event.data}
                for id, events in messages.items()
                for event in events
            ]
            ours = tables.select(tables.session.c.id).where(tables.session.c.id.in_(list(messages)))
            there = set(connection.execute(ours).scalars())
            _each(connection, table.insert(), [row for row in rows if row["session"] in there])

        return self._batch.add(leave)

    async def take_over(self, id: str) -> ResumedSession | None:
        """Take over an orphaned session. Raises StateError.

        Return None where it is gone, or another process was first; or where it can't be read, and then remove it.
        """
        dead = await self._processes.find_dead(await self._store.read(partial(_list_processes, id=id)))
        return await self._store.transact(partial(self._take, id, dead), alone="sessions")

    def _take(self, id: str, dead: Collection[str], connection: "tables.Connection") -> ResumedSession | None:
        session, message = tables.session, tables.session_message
        row = connection.execute(session.select().where(session.c.id == id)).one_or_none()
        own = self._processes.own_name()
        if row is None or (row.process != own and row.process not in dead):
            return None
        try:
            details = decode_json(row.details, SessionDetails)
        except (JsonError, TypeError) as error:
            log.warning("a session can't be resumed, its details can't be read: %s", error)
            connection.execute(session.delete().where(session.c.id == id))
            return None
        mine = message.select().where(message.c.session == id).order_by(message.c.stream, message.c.number)
        events = [StoredEvent(event.stream, event.number, event.data) for event in connection.execute(mine)]
        claim = session.update().where(session.c.id == id, session.c.process == row.process)
        if connection.execute(claim.values(process=own, seen_at=self.now())).rowcount != 1:
            return None
        unasked = (message.c.session == id) & (message.c.stream == "")
        connection.execute(message.delete().where(unasked))  # they are delivered once, on another stream
        return ResumedSession(details, row.began_at, events)

    def _recall(
        self, idle: float, most: int, dead: Collection[str], connection: "tables.Connection"
    ) -> list[StoredSession]:
        table, now = tables.session, self.now()
        self._processes.own_name()  # counts as alive from now on
        names = set(_list_processes(connection))
        orphaned = table.c.process.in_(sorted(dead))
        connection.execute(table.delete().where(orphaned & (table.c.seen_at < now - idle)))
        columns = [table.c[name] for name in ("id", "process", "issuer", "subject", "client", "seen_at", "details")]
        of_dead = table.select().where(orphaned).with_only_columns(*columns).order_by(table.c.seen_at)
        rows = connection.execute(of_dead).all()
        readable = [row for row in rows if _is_readable(row)]
        recent = readable[max(0, len(readable) - most) :]
        kept = {row.id for row in recent}
        _remove_sessions(connection, [(row.id, row.process) for row in rows if row.id not in kept])
        if not recent and names <= set(dead):
            self._store.set_flag(flags.SESSIONS, "", False)
        return [
            StoredSession(row.id, row.process, row.issuer, row.subject, row.client, row.seen_at, _grants(row.details))
            for row in recent
        ]


def _is_readable(row: Any) -> bool:
    """Check the types: SQLite stores any type in any column."""
    words = (row.id, row.issuer, row.subject, row.client)
    return isinstance(row.seen_at, (int, float)) and all(isinstance(word, str) for word in words)


def _grants(details: Any) -> Sequence[str]:
    try:
        return decode_json(details, SessionGrants).grants
    except (JsonError, TypeError):
        return ()  # it can't be resumed anyway


def encode_details(details: SessionDetails) -> bytes | None:
    """Return the stored form, without subscriptions where it would be too large; None where it still is."""
    for candidate in (details, msgspec.structs.replace(details, subscribed=[])):
        try:
            data = msgspec.json.encode(candidate)
        except (UnicodeEncodeError, RecursionError):  # a lone surrogate, or capabilities nested too deep
            return None
        if len(data) <= MAX_DETAILS:
            return data
    return None


def remove_sessions(database: Path) -> None:
    """Remove all sessions from a copy of the database: restoring it must not reopen one that ended since.

    Raises StateError.
    """
    import sqlite3  # start-up

    try:
        with contextlib.closing(sqlite3.connect(database)) as raw, raw:
            for table in ("session_message", "session"):
                if raw.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
                    raw.execute(f"DELETE FROM {table}")  # noqa: S608  # one of the two above
    except sqlite3.Error as error:
        raise StateError(f"the copy of the state database {describe_error(error)}") from error


def _see(seen: Mapping[str, float], connection: "tables.Connection") -> None:
    table = tables.session
    used = table.update().where(table.c.id == tables.bindparam("of")).values(seen_at=tables.bindparam("at"))
    _each(connection, used, [{"of": id, "at": time} for id, time in seen.items()])


def _list_processes(connection: "tables.Connection", id: str | None = None) -> list[str]:
    """Return the processes that have sessions, or have the session `id`."""
    table = tables.session
    if id is None:
        return tables.list_distinct(connection, table.c.process)
    return list(connection.execute(tables.select(table.c.process).where(table.c.id == id)).scalars())


def _remove_sessions(connection: "tables.Connection", held: list[tuple[str, str]]) -> None:
    """Remove these sessions, each if this process still has it: (id, process)."""
    table = tables.session
    this = (table.c.id == tables.bindparam("of")) & (table.c.process == tables.bindparam("holder"))
    _each(connection, table.delete().where(this), [{"of": id, "holder": process} for id, process in held])


def _each(connection: "tables.Connection", statement: Any, rows: list[dict[str, Any]]) -> None:
    """Execute the statement for each row, if there is any."""
    if rows:
        connection.execute(statement, rows)
