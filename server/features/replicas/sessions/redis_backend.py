"""Share a session with other replicas: its record is here and in Redis, and its streams are written to Redis."""

import asyncio
import logging
import os
from collections import deque
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from toolgate.server.base.bus.bus import BusUnreachableError, Streams
from toolgate.server.base.principals.principal import Principal
from toolgate.server.features.replicas.sessions.record import (
    SessionRecord,
    decode_record,
    encode_record,
    merge_records,
)
from toolgate.server.features.replicas.sessions.redis_records import RedisSessionRecords
from toolgate.server.features.replicas.sessions.stream_entries import format_entry
from toolgate.server.protocol.errors import InternalError
from toolgate.server.protocol.messages import Inbound, Notification, Outbound, decode_value, encode_value
from toolgate.server.protocol.revisions import WITH_SESSION
from toolgate.transports.http.sessions.event_stream import EventStream
from toolgate.transports.http.sessions.session import HttpSession, union_scopes

TRIES = 20  # of writing a record that others change at the same time
MAX_UNSENT = 1_024  # unrequested messages that wait while Redis is slow; the newest stay
SEEN = 60.0  # seconds between updates of the last use

log = logging.getLogger("toolgate.http")


class SessionEndedError(Exception):
    """The session has ended at another replica."""


class SessionPeers(Protocol):
    """The other replicas, for the sessions here. See `SessionBackend` for what is not said."""

    def deliver(self, shared: "RedisBackend") -> None:
        """Send `unsent`, the unrequested messages for a reader elsewhere."""
        ...

    def note_change(self, shared: "RedisBackend") -> None:
        """Tell other replicas that the record has changed."""
        ...

    def note_end(self, shared: "RedisBackend") -> None:
        """The session is closed here."""
        ...

    def forget(self, shared: "RedisBackend") -> None:
        """Close the session here: it has ended at another replica."""
        ...

    async def resume(self, session: HttpSession, id: str, principal: Principal) -> tuple[EventStream, int] | None: ...

    async def pass_on(self, session: HttpSession, message: Inbound | list[Inbound]) -> None: ...

    def keep_request(self, session: HttpSession, stream: EventStream, message: Inbound | list[Inbound]) -> None: ...

    def listen(self, shared: "RedisBackend", stream: EventStream) -> AbstractAsyncContextManager[None]: ...


class RedisBackend:
    """What replicas share of a session. `record` is what is known of the one in Redis, whose bytes are `data`."""

    is_stored = True

    def __init__(
        self, session: HttpSession, records: RedisSessionRecords, streams: Streams, peers: SessionPeers
    ) -> None:
        self.session = session
        self.key = session.record_key  # the digest of the session's id
        self.replica = session.replica
        self.unsent: deque[Outbound] = deque(maxlen=MAX_UNSENT)
        self.is_delivering = False
        self.is_listed = False  # among those that this replica notifies
        self.listener = ""
        self.is_unwritten = False  # a change could not be written
        session.began = self.seen = records.now()
        self._records = records
        self._streams = streams
        self._peers = peers
        self._encoded_capabilities: tuple[dict[str, Any], msgspec.Raw] = {}, msgspec.Raw(b"{}")
        self._subscribed = frozenset[str]()  # what the record and this replica both have
        self.record = self._format(1)
        self.data = b""
        session.session.place.save = self._save

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
        await self._records.add(self.key, self.data)

    async def merge(self) -> None:
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
            if await self._records.replace(self.key, old, new):
                if self.record.version < mine.version:
                    self.data, self.record = new, mine
                self.is_unwritten = False
                self.note_subscriptions()
                if self.listener not in ("", self.replica):
                    self._peers.note_change(self)  # the listener notifies the client
                return
            found = await self._records.read(self.key)
            record = None if found is None else decode_record(found)
            if found is None or record is None:
                raise SessionEndedError
            self.take_record(found, record)
        log.warning("a session's record changes too often: a change was not written")

    def note_subscriptions(self) -> None:
        """Note that this replica follows the record's subscriptions, as far as it can."""
        self._subscribed = frozenset(self.session.session.subscribed).intersection(self.record.subscribed)

    def note_use(self) -> bool:
        """Return whether there is something to write: what could not be written before, another token's grant, or a new
        time of the last use."""
        now = self._records.now()
        if now - self.seen > SEEN:
            self.seen = now
        is_new = self.is_unwritten or self.seen != self.record.seen
        return is_new or len(self.session.rights) != len(self.record.grants) or self._has_new_scopes()

    async def resume(self, id: str, principal: Principal) -> tuple[EventStream, int] | None:
        return await self._peers.resume(self.session, id, principal)

    async def pass_on(self, message: Inbound | list[Inbound]) -> None:
        await self._peers.pass_on(self.session, message)

    def keep_request(self, stream: EventStream, message: Inbound | list[Inbound]) -> None:
        self._peers.keep_request(self.session, stream, message)

    async def write(self) -> None:
        """Write what a notification changed. Raises BusUnreachableError."""
        try:
            await self.merge()
        except SessionEndedError:
            self._peers.forget(self)

    def listen(self, stream: EventStream) -> AbstractAsyncContextManager[None]:
        return self._peers.listen(self, stream)

    def note_rights(self) -> None:
        """Do nothing: the request that brought them looks at `note_use`."""

    def note_end(self) -> None:
        self._peers.note_end(self)

    # -- unrequested messages

    @property
    def can_ask(self) -> bool:
        """Whether a GET stream has a reader, here or elsewhere."""
        return self.session.has_listener or self.listener not in ("", self.replica)

    def send(self, message: Outbound) -> None:
        if self.session.has_listener and not self.unsent:
            self.session.send_here(message)
        else:
            self.unsent.append(message)
            self._peers.deliver(self)

    def notify_missed(self) -> None:
        """Have the client look again at what may have changed while the replica of its reader was dead."""
        self.session.send_here(Notification("notifications/resources/list_changed"))
        for uri in list(self.session.session.subscribed):
            self.session.session.notify_updated(uri)

    # -- streams

    def note_stream(self, stream: EventStream) -> None:
        if stream.id.startswith(self.replica):
            stream.on_event = self._write_event

    def _write_event(self, stream: EventStream) -> None:
        data = format_entry(stream, stream.last)
        self._streams.append(self.key, stream.id, stream.last, data)

    # -- the record

    async def _save(self) -> None:
        """Write what a request changed. A directory alone is written later if Redis is away. Raises InternalError."""
        place = self.session.session.place
        mine = self._format(self.record.version)
        old = self.record
        is_cwd_alone = msgspec.structs.replace(mine, cwd=old.cwd, previous=old.previous) == old
        directories = place.cwd, place.previous
        try:
            await self.merge()
        except SessionEndedError:
            return
        except BusUnreachableError as error:
            if not is_cwd_alone:
                raise InternalError(str(error)) from None
            log.warning("a session's working directory is not stored yet: %s", error)
        else:
            place.note_saved(*directories)

    def _has_new_scopes(self) -> bool:
        own, known = self.session.all_scopes, self.record.scopes
        return (own is None) != (known is None) or len(own or ()) != len(known or ())

    def _format(self, version: int) -> SessionRecord:
        session, place = self.session.session, self.session.session.place
        subscribed = frozenset(session.subscribed)
        others = frozenset(self.record.subscribed if version > 1 else ()) - (self._subscribed - subscribed)
        return SessionRecord(
            issuer=self.session.principal.issuer,
            subject=self.session.principal.subject,
            client=self.session.principal.client,
            began=self.session.began,
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
            grants=tuple(sorted(self.session.rights, key=str)),
            scopes=None if self.session.all_scopes is None else tuple(sorted(self.session.all_scopes)),
            listener=self.listener,
        )

    def _encode_capabilities(self) -> msgspec.Raw:
        known, encoded = self._encoded_capabilities
        if known is not self.session.session.capabilities:
            known = self.session.session.capabilities
            try:
                encoded = msgspec.Raw(encode_value(known))
            except RecursionError:
                encoded = msgspec.Raw(b"{}")
            self._encoded_capabilities = known, encoded
        return encoded

    def _apply(self, record: SessionRecord) -> None:
        """Be what the record says. Subscriptions are not part of it: they take a while."""
        session, place = self.session.session, self.session.session.place
        session.revision = WITH_SESSION.get(record.revision)
        if record.capabilities != self._encode_capabilities():
            session.capabilities = decode_value(bytes(record.capabilities))
            self._encoded_capabilities = session.capabilities, record.capabilities
        session.client, session.ready, session.log_level = record.name, record.ready, record.level
        place.cwd = None if record.cwd is None else Path(os.fsdecode(record.cwd))
        place.previous = None if record.previous is None else Path(os.fsdecode(record.previous))
        place.note_saved(place.cwd, place.previous)
        place.plan = record.plan
        self.session.began, self.seen, self.listener = record.began, max(self.seen, record.seen), record.listener
        self.session.rights.update(record.grants)
        scopes = None if record.scopes is None else frozenset(record.scopes)
        self.session.all_scopes = union_scopes(self.session.all_scopes, scopes)


def start_work(session: HttpSession, work: Any) -> "asyncio.Task[None]":
    """Start work that ends with the session."""
    task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
    session.tasks.add(task)
    task.add_done_callback(session.tasks.discard)
    return task
