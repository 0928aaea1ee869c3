"""The sessions of Streamable HTTP in the state database, so that they go on after a restart. Knows nothing of streams
or of who may go on with one: see transports/http/sessions.py.

What is written is no secret that opens a session: the row is named by the digest of its id. A row belongs to the
process that has the session open. When that one is dead, it is taken over by the process that its client comes to: of
several that started since, each may know it.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from toolgate.server.state import tables
from toolgate.server.state.batch import WriteBatch
from toolgate.server.state.live_processes import ProcessRegistry
from toolgate.server.state.sqlite import describe_error
from toolgate.server.state.store import StateError, Store
from toolgate.tools.api.context import PlanState

if TYPE_CHECKING:
    import asyncio

    from sqlalchemy import Connection

FLAG = "sessions"  # flag: there are some
MAX_DETAILS = 64 * 2**10  # bytes: capabilities and subscriptions are the client's, which may send megabytes of them

log = logging.getLogger(__name__)


class SessionDetails(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is remembered of a session besides whose it is."""

    name: str  # what the client is called
    revision: str
    capabilities: dict[str, Any]
    log_level: Annotated[int, Meta(ge=0, le=7)] | None
    subscribed: list[str]  # URIs of resources
    workspace: str
    cwd: bytes | None
    plan: PlanState | None
    grants: list[str] = []  # whose tokens used it
    scopes: list[str] | None = None  # of any of them, with all that they imply


class SessionGrants(msgspec.Struct, frozen=True):
    """What is read of it at the start."""

    grants: list[str] = []


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session that no living process has open. `process` had it open last."""

    id: str
    process: str
    issuer: str
    subject: str
    client: str
    seen_at: float  # in seconds since 1970
    grants: Sequence[str] = ()  # none: an older version wrote it, or there is no grant


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One for the client, which is event `number` of `stream`; of no stream yet where that is ""."""

    stream: str
    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ResumedSession:
    """All that is known of a session."""

    details: SessionDetails
    began_at: float
    messages: Sequence[StoredEvent]


class SessionRecords:
    """`workspace` is the server's: where a session stands means nothing in another. `now` is in seconds since 1970."""

    def __init__(
        self, store: Store, processes: ProcessRegistry, workspace: str, now: Callable[[], float] = time.time
    ) -> None:
        self.workspace = workspace
        self.now = now
        self._store = store
        self._processes = processes
        self._batch = WriteBatch(store)

    async def list_orphaned(self, idle: float, most: int) -> list[StoredSession]:
        """What dead processes left, the longest idle first: of those that were seen in the last `idle` seconds the
        `most` that were seen last. The others are forgotten. Raises StateError."""
        if not self._store.has_flag(FLAG, ""):
            return []
        return await self._store.transact(partial(self._recall, idle, most))

    def add(self, id: str, owner: tuple[str, str, str], details: bytes) -> "asyncio.Future[None]":
        """Remember a new session: issuer, subject and client are `whose`."""
        issuer, subject, client = owner

        def put(connection: "Connection") -> None:
            now = self.now()
            row: dict[str, Any] = {"id": id, "issuer": issuer, "subject": subject, "client": client, "details": details}
            row |= {"process": self._processes.own_name(), "began_at": now, "seen_at": now}
            connection.execute(tables.session.insert(), row)
            if not self._store.has_flag(FLAG, ""):
                self._store.set_flag(FLAG, "", True)

        return self._batch.add(put)

    def update(self, id: str, details: bytes) -> "asyncio.Future[None]":
        """Nothing happens to one that is forgotten."""

        def change(connection: "Connection") -> None:
            of = tables.session
            connection.execute(of.update().where(of.c.id == id).values(details=details))

        return self._batch.add(change)

    def remove(self, ended: Mapping[str, str]) -> "asyncio.Future[None]":
        """Forget sessions that ended: they never come back. `ended`: id → the process that had it open last, "" for
        this one. One that another process has taken over has not ended."""
        gone = dict(ended)

        def drop(connection: "Connection") -> None:
            own = self._processes.own_name()
            rows = [(id, process, own) for id, process in gone.items()]
            _each(connection, "DELETE FROM session WHERE id = ? AND process IN (?, ?)", rows)

        return self._batch.add(drop)

    def mark_seen(self, seen: Mapping[str, float]) -> "asyncio.Future[None]":
        """When each was last used, in seconds since 1970."""
        return self._batch.add(partial(_see, seen))

    def save_pending(
        self, seen: Mapping[str, float], messages: Mapping[str, Sequence[StoredEvent]]
    ) -> "asyncio.Future[None]":
        """Write down what the next process needs: this one is ending."""

        def leave(connection: "Connection") -> None:
            _see(seen, connection)
            of = tables.session_message
            _each(connection, "DELETE FROM session_message WHERE session = ?", [(id,) for id in messages])
            rows = [
                {"session": id, "stream": one.stream, "number": one.number, "data": one.data}
                for id, some in messages.items()
                for one in some
            ]
            there = set(connection.execute(tables.session.select().with_only_columns(tables.session.c.id)).scalars())
            kept = [row for row in rows if row["session"] in there]
            if kept:
                connection.execute(of.insert(), kept)

        return self._batch.add(leave)

    async def take_over(self, id: str) -> ResumedSession | None:
        """Take over one that was recalled: all of it. None where it is gone, or another process was first; and where it
        can't be read: then it is forgotten. Raises StateError."""
        return await self._store.transact(partial(self._take, id))

    def _take(self, id: str, connection: "Connection") -> ResumedSession | None:
        session, message = tables.session, tables.session_message
        row = connection.execute(session.select().where(session.c.id == id)).one_or_none()
        own = self._processes.own_name()
        if row is None or (row.process != own and self._processes.is_alive(row.process)):
            return None
        try:
            details = msgspec.json.decode(row.details, type=SessionDetails)
        except (msgspec.ValidationError, msgspec.DecodeError, TypeError) as error:
            log.warning("a session can't go on, what is remembered of it can't be read: %s", error)
            connection.execute(session.delete().where(session.c.id == id))
            return None
        mine = message.select().where(message.c.session == id).order_by(message.c.stream, message.c.number)
        found = [StoredEvent(one.stream, one.number, one.data) for one in connection.execute(mine)]
        unasked = (message.c.session == id) & (message.c.stream == "")
        connection.execute(message.delete().where(unasked))  # they are told once, on another stream
        connection.execute(session.update().where(session.c.id == id).values(process=own, seen_at=self.now()))
        return ResumedSession(details, row.began_at, found)

    def _recall(self, idle: float, most: int, connection: "Connection") -> list[StoredSession]:
        of = tables.session
        own, now = self._processes.own_name(), self.now()
        names = set(connection.execute(of.select().with_only_columns(of.c.process).distinct()).scalars())
        dead = [name for name in names if name != own and not self._processes.is_alive(name)]
        left = of.c.process.in_(dead)
        connection.execute(of.delete().where(left & (of.c.seen_at < now - idle)))
        columns = (of.c.id, of.c.process, of.c.issuer, of.c.subject, of.c.client, of.c.seen_at, of.c.details)
        rows = connection.execute(of.select().where(left).with_only_columns(*columns).order_by(of.c.seen_at)).all()
        readable = [row for row in rows if _is_readable(row)]
        kept = readable[max(0, len(readable) - most) :]
        surplus = {row.id for row in rows} - {row.id for row in kept}
        _each(connection, "DELETE FROM session WHERE id = ?", [(id,) for id in surplus])
        if not kept and names <= set(dead):
            self._store.set_flag(FLAG, "", False)
        return [StoredSession(*row[:-1], _grants(row.details)) for row in kept]


def _is_readable(row: Any) -> bool:
    """SQLite holds any type in any column."""
    words = (row.id, row.issuer, row.subject, row.client)
    return isinstance(row.seen_at, (int, float)) and all(isinstance(word, str) for word in words)


def _grants(details: Any) -> Sequence[str]:
    try:
        return msgspec.json.decode(details, type=SessionGrants).grants
    except (msgspec.ValidationError, msgspec.DecodeError, TypeError):
        return ()  # nobody goes on with it


def encode_details(details: SessionDetails) -> bytes | None:
    """As it is written; without subscriptions where it would be too large, and None where it still is."""
    for tried in (details, msgspec.structs.replace(details, subscribed=[])):
        try:
            data = msgspec.json.encode(tried)
        except (UnicodeEncodeError, RecursionError):  # a lone surrogate, or capabilities too deep to be put in anything
            return None
        if len(data) <= MAX_DETAILS:
            return data
    return None


def remove_sessions(database: Path) -> None:
    """Take all sessions out of a copy of the database: what is restored from it must not open one that ended since.
    Raises StateError."""
    import sqlite3  # start-up

    try:
        with contextlib.closing(sqlite3.connect(database)) as raw, raw:
            for table in ("session_message", "session"):
                if raw.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
                    raw.execute(f"DELETE FROM {table}")  # noqa: S608  # one of the two above
    except sqlite3.Error as error:
        raise StateError(f"the copy of the state database {describe_error(error)}") from error


def _see(seen: Mapping[str, float], connection: "Connection") -> None:
    _each(connection, "UPDATE session SET seen_at = ? WHERE id = ?", [(at, id) for id, at in seen.items()])


def _each(connection: "Connection", statement: str, rows: list[tuple[Any, ...]]) -> None:
    if rows:
        connection.exec_driver_sql(statement, rows)
