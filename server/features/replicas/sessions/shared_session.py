"""Hold a session that other replicas have, too: its record here and in Redis, and its streams written to Redis."""

import asyncio
import logging
import os
from collections import deque
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from toolgate.server.auth.scopes import NOTHING
from toolgate.server.base.budget import Budget
from toolgate.server.base.bus.bus import BusUnreachableError, Streams
from toolgate.server.base.principal import Principal
from toolgate.server.features.replicas.sessions.session_store import SessionStore
from toolgate.server.features.replicas.sessions.stream_entries import format_entry
from toolgate.server.protocol.errors import InternalError
from toolgate.server.protocol.messages import Inbound, Notification, Outbound, decode_value, encode_value
from toolgate.server.protocol.revisions import WITH_SESSION
from toolgate.server.protocol.session_record import (
    SessionRecord,
    decode_record,
    encode_record,
    merge_records,
)
from toolgate.transports.http.sessions.event_stream import EventStream
from toolgate.transports.http.sessions.session import HttpSession

TRIES = 20  # of writing a record that others change at the same time
MAX_UNSENT = 1_024  # unrequested messages that wait while Redis is slow; the newest stay
SEEN = 60.0  # seconds between updates of the last use

log = logging.getLogger("toolgate.http")


class SessionEndedError(Exception):
    """The session has ended at another replica."""


class SessionPeers(Protocol):
    """The other replicas, for the sessions here. See `HttpSession` for what is not said."""

    def deliver(self, session: "SharedSession") -> None:
        """Send `unsent`, the unrequested messages for a reader elsewhere."""
        ...

    def note_change(self, session: "SharedSession") -> None:
        """Tell other replicas that the record has changed."""
        ...

    def forget(self, session: "SharedSession") -> None:
        """Close the session here: it has ended at another replica."""
        ...

    async def resume(
        self, session: "SharedSession", id: str, principal: Principal
    ) -> tuple[EventStream, int] | None: ...

    async def pass_on(self, session: "SharedSession", message: Inbound | list[Inbound]) -> None: ...

    def keep_request(self, session: "SharedSession", stream: EventStream, message: Inbound | list[Inbound]) -> None: ...

    def listen(self, session: "SharedSession", stream: EventStream) -> AbstractAsyncContextManager[None]: ...


class SharedSession(HttpSession):
    """A session of several replicas. `record` is what is known of the one in Redis, whose bytes are `data`."""

    def __init__(
        self,
        principal: Principal,
        transport: str,
        store: SessionStore,
        streams: Streams,
        replica: str,
        peers: SessionPeers,
        *,
        events: Budget | None = None,
        key: str = "",
    ) -> None:
        super().__init__(principal, transport, events=events, key=key, replica=replica)
        self.replica = replica
        self.unsent: deque[Outbound] = deque(maxlen=MAX_UNSENT)
        self.is_delivering = False
        self.is_listed = False  # among those that this replica notifies
        self.listener = ""
        self.is_unwritten = False  # a change could not be written
        self.began = self.seen = store.now()
        self._store = store
        self._kept_streams = streams
        self._peers = peers
        self._encoded_capabilities: tuple[dict[str, Any], msgspec.Raw] = {}, msgspec.Raw(b"{}")
        self._subscribed = frozenset[str]()  # what the record and this replica both have
        self.record = self._format(1)
        self.data = b""
        self.session.place.save = self._save

    @property
    def key(self) -> str:
        """The digest of the session's id."""
        return self.session.place.key

    def take_record(self, data: bytes, record: SessionRecord) -> None:
        """Take over what other replicas changed; what this one has not written yet stays."""
        if not self.data:
            merged = record
        elif data == self.data or record.version <= self.record.version:
            return
        else:
            merged = merge_records(self.record, self._format(self.record.version), record)
        self.data, self.record = data, record
        self._apply(merged)

    async def add(self) -> None:
        """Write the record of a new session. Raises BusUnreachableError."""
        self.record = self._format(1)
        self.data = encode_record(self.record)
        await self._store.add(self.key, self.data)

    async def write(self) -> None:
        """Write what this replica has changed, and merge what others changed at the same time.

        Raises BusUnreachableError, SessionEndedError.
        """
        for _ in range(TRIES):
            base, old, mine = self.record, self.data, self._format(self.record.version)
            self.is_unwritten = mine != base
            if not self.is_unwritten:
                return
            mine = msgspec.structs.replace(mine, version=base.version + 1)
            new = encode_record(mine)
            if await self._store.replace(self.key, old, new):
                if self.record.version < mine.version:
                    self.data, self.record = new, mine
                self.is_unwritten = False
                self.note_subscriptions()
                if self.listener not in ("", self.replica):
                    self._peers.note_change(self)  # the listener notifies the client
                return
            found = await self._store.read(self.key)
            record = None if found is None else decode_record(found)
            if found is None or record is None:
                raise SessionEndedError
            self.take_record(found, record)
        log.warning("a session's record changes too often: a change was not written")

    def note_subscriptions(self) -> None:
        """Note that this replica follows the record's subscriptions, as far as it can."""
        self._subscribed = frozenset(self.session.subscribed).intersection(self.record.subscribed)

    def note_use(self) -> bool:
        """Return whether there is something to write: what could not be written before, another token's grant, or a new
        time of the last use."""
        now = self._store.now()
        if now - self.seen > SEEN:
            self.seen = now
        is_new = self.is_unwritten or self.seen != self.record.seen
        return is_new or len(self.rights) != len(self.record.grants) or self._has_new_scopes()

    async def resume(self, id: str, principal: Principal) -> tuple[EventStream, int] | None:
        return await self._peers.resume(self, id, principal)

    async def pass_on(self, message: Inbound | list[Inbound]) -> None:
        await self._peers.pass_on(self, message)

    def keep_request(self, stream: EventStream, message: Inbound | list[Inbound]) -> None:
        self._peers.keep_request(self, stream, message)

    async def store(self) -> None:
        """Write what a notification changed. Raises BusUnreachableError."""
        try:
            await self.write()
        except SessionEndedError:
            self._peers.forget(self)

    def listen(self, stream: EventStream) -> AbstractAsyncContextManager[None]:
        return self._peers.listen(self, stream)

    # -- unrequested messages

    @property
    def can_ask(self) -> bool:
        """Whether a GET stream has a reader, here or elsewhere."""
        return self.has_listener or self.listener not in ("", self.replica)

    def send(self, message: Outbound) -> None:
        if self.has_listener and not self.unsent:
            super().send(message)
        else:
            self.unsent.append(message)
            self._peers.deliver(self)

    def send_here(self, message: Outbound) -> None:
        """Send it on a GET stream of this replica."""
        super().send(message)

    def notify_missed(self) -> None:
        """Have the client look again at what may have changed while the replica of its reader was dead."""
        self.send_here(Notification("notifications/resources/list_changed"))
        for uri in list(self.session.subscribed):
            self.session.notify_updated(uri)

    # -- streams

    def _create_stream(self, name: str, wanted: frozenset[str] = NOTHING) -> EventStream:
        stream = super()._create_stream(name, wanted)
        if name.startswith(self.replica):
            stream.on_event = self._write_event
        return stream

    def _write_event(self, stream: EventStream) -> None:
        data = format_entry(stream, stream.last)
        self._kept_streams.append(self.key, stream.id, stream.last, data)

    # -- the record

    async def _save(self) -> None:
        """Write what a request changed. A directory alone is written later if Redis is away. Raises InternalError."""
        place = self.session.place
        mine = self._format(self.record.version)
        old = self.record
        is_cwd_alone = msgspec.structs.replace(mine, cwd=old.cwd, previous=old.previous) == old
        directories = place.cwd, place.previous
        try:
            await self.write()
        except SessionEndedError:
            return
        except BusUnreachableError as error:
            if not is_cwd_alone:
                raise InternalError(str(error)) from None
            log.warning("a session's working directory is not stored yet: %s", error)
        else:
            place.note_saved(*directories)

    def _has_new_scopes(self) -> bool:
        known = self.record.scopes
        return (None if self._scopes is None else len(self._scopes)) != (None if known is None else len(known))

    def _format(self, version: int) -> SessionRecord:
        session, place = self.session, self.session.place
        subscribed = frozenset(session.subscribed)
        others = frozenset(self.record.subscribed if version > 1 else ()) - (self._subscribed - subscribed)
        return SessionRecord(
            issuer=self.principal.issuer,
            subject=self.principal.subject,
            client=self.principal.client,
            began=self.began,
            seen=self.seen,
            version=version,
            revision="" if session.revision is None else session.revision.name,
            capabilities=self._encode_capabilities(),
            name=session.client,
            ready=session.ready,
            level=session.log_level,
            cwd=None if place.cwd is None else os.fsencode(place.cwd),
            previous=None if place.previous is None else os.fsencode(place.previous),
            plan=place.plan,
            subscribed=tuple(sorted(others | subscribed)),
            grants=tuple(sorted(self.rights, key=str)),
            scopes=None if self._scopes is None else tuple(sorted(self._scopes)),
            listener=self.listener,
        )

    def _encode_capabilities(self) -> msgspec.Raw:
        known, encoded = self._encoded_capabilities
        if known is not self.session.capabilities:
            known = self.session.capabilities
            try:
                encoded = msgspec.Raw(encode_value(known))
            except RecursionError:
                encoded = msgspec.Raw(b"{}")
            self._encoded_capabilities = known, encoded
        return encoded

    def _apply(self, record: SessionRecord) -> None:
        """Be what the record says. Subscriptions are not part of it: they take a while."""
        session, place = self.session, self.session.place
        session.revision = WITH_SESSION.get(record.revision)
        if record.capabilities != self._encode_capabilities():
            session.capabilities = decode_value(bytes(record.capabilities))
            self._encoded_capabilities = session.capabilities, record.capabilities
        session.client, session.ready, session.log_level = record.name, record.ready, record.level
        place.cwd = None if record.cwd is None else Path(os.fsdecode(record.cwd))
        place.previous = None if record.previous is None else Path(os.fsdecode(record.previous))
        place.note_saved(place.cwd, place.previous)
        place.plan = record.plan
        self.began, self.seen, self.listener = record.began, max(self.seen, record.seen), record.listener
        self.rights.update(record.grants)
        scopes = None if record.scopes is None else frozenset(record.scopes)
        self._scopes = None if self._scopes is None or scopes is None else self._scopes | scopes


def start_work(session: SharedSession, work: Any) -> "asyncio.Task[None]":
    """Start work that ends with the session."""
    task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
    session.tasks.add(task)
    task.add_done_callback(session.tasks.discard)
    return task
