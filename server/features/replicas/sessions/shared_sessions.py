"""Open, find and end sessions that all replicas have: each request reads the session's record in Redis.

A replica builds a session at its first request here, and then only compares the record's bytes. Notices of cancelled
requests, ended sessions and changed subscriptions go to all replicas, answers of clients to the one that asked.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from toolgate.server.base.budget import Budget
from toolgate.server.base.bus.bus import Bus, BusUnreachableError, NoReplyError, UndeliveredError
from toolgate.server.base.bus.replica_ids import parse_id
from toolgate.server.base.principal import Principal
from toolgate.server.features.replicas.sessions.resumed_streams import ResumedStreams
from toolgate.server.features.replicas.sessions.session_limits import SessionLimits
from toolgate.server.features.replicas.sessions.session_store import SessionStore
from toolgate.server.features.replicas.sessions.shared_session import SessionEndedError, SharedSession
from toolgate.server.features.replicas.sessions.unrequested_messages import UnrequestedMessages
from toolgate.server.protocol.dispatcher import Dispatcher
from toolgate.server.protocol.message_ids import Id, is_id
from toolgate.server.protocol.messages import Inbound, Notification, Request, Response
from toolgate.server.protocol.session import Session, hash_key
from toolgate.server.protocol.session_record import SessionRecord, decode_record
from toolgate.transports.http.sessions.event_stream import EventStream
from toolgate.transports.http.sessions.session import HttpSession
from toolgate.transports.http.sessions.sessions import IDLE, MAX_SESSIONS, AnySession, Sessions

TOPIC = "sessions"
ANSWER = "session-answer"  # mail: a client's answer to a question
ANSWER_TIME = 5.0  # seconds for the replica that asked to take it
TOUCH = 60.0  # seconds between two looks at the sessions that have work or a reader here: they do not expire
CHUNK = 100  # sessions that are looked at in one round trip
RETRY = 1.0  # seconds between two tries to remove a session while Redis is away
CANCELLED = "notifications/cancelled"

log = logging.getLogger("toolgate.http")


class _Notice(msgspec.Struct, array_like=True, frozen=True):
    """What all replicas learn of a session: "cancel" with the id of a request, "end", or "change"."""

    session: str
    kind: str
    id: Id | None = None


class _Answer(msgspec.Struct, array_like=True, frozen=True):
    session: str
    id: str
    result: Any
    error: Any


_decode_notice = msgspec.msgpack.Decoder(_Notice).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode


class SharedSessions(Sessions):
    """The sessions of one transport at all replicas. `share(session, uris)` follows the session's subscriptions here.

    `per_owner` and `per_person` limit the sessions of all replicas; None if there is only one person. `limit` is for
    those that this replica has in memory.
    `now` is the clock of all replicas, in seconds since the epoch.
    `may_repeat(request)`: whether a call may be made again after its replica died.
    """

    def __init__(
        self,
        bus: Bus,
        on_end: Callable[[Session], None],
        dispatcher: Dispatcher,
        *,
        share: Callable[[Session, Iterable[str]], Awaitable[None]],
        may_repeat: Callable[[Request], bool],
        transport: str = "",
        events: Budget | None = None,
        per_owner: int | None = None,
        per_person: int | None = None,
        limit: int = MAX_SESSIONS,
        idle: float = IDLE,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(on_end, idle=idle, limit=limit, transport=transport, events=events)
        self._bus = bus
        self._share = share
        self._store = SessionStore(bus.keys, idle, now)
        self._limits: SessionLimits | None = None
        if per_owner is not None and per_person is not None:
            self._limits = SessionLimits(bus.keys, self._store, per_owner, per_person)
        self._streams = ResumedStreams(bus, self.find_by_key, dispatcher, may_repeat)
        self._unrequested = UnrequestedMessages(bus, self._store, self.find_by_key)
        self._by_key: dict[str, SharedSession] = {}  # by the digest of the id
        self._building: dict[str, asyncio.Task[None]] = {}
        self._ended: set[str] = set()  # that are not removed from Redis yet
        self._tasks: set[asyncio.Task[Any]] = set()
        bus.mail.receive(ANSWER, self._receive_answer)
        self._notices = bus.topics.subscribe(TOPIC, self._receive_notice, self._look_soon)

    # -- opening, finding and ending

    async def recall(self) -> None:
        """Follow what other replicas say of sessions, from before the first request on."""
        with contextlib.suppress(BusUnreachableError):
            await self._notices.confirm()
        self._start(self._keep_alive())

    async def admit(self, principal: Principal) -> HttpSession | None:
        if not self._make_room(principal):
            return None
        session = self._create(principal)
        self._keep(session)
        try:
            if self._limits is not None:
                for key in await self._limits.add(session.key, principal):
                    self._end_key(key)
            await session.add()
        except BaseException:
            self.forget(session)
            raise
        return session

    def find(self, id: str, principal: Principal) -> HttpSession | None:
        """Return None: Redis has to be asked, see `wake`."""
        return None

    def find_by_key(self, key: str) -> SharedSession | None:
        """Return the session with this digest, if it is open here."""
        return self._by_key.get(key)

    async def wake(self, id: str, principal: Principal) -> HttpSession | None:
        """Return the session `id`, built here if need be, if it is the principal's. Raises BusUnreachableError."""
        key = hash_key(id)
        data = await self._store.read(key)
        session = self._by_key.get(key)
        if data is None or key in self._ended:
            if session is not None:
                self.forget(session)
            return None
        if session is None or session.data != data:
            record = decode_record(data)
            if record is None or record.owner != principal.owner:
                return None
            session = await self._build(id, key, data, record, principal)
        if session is None or session.owner != principal.owner:
            return None
        if session.principal is not principal and not session.use(principal):
            return None
        if session.note_use():
            try:
                await session.write()
            except SessionEndedError:
                self.forget(session)
                return None
        if session.id not in self._sessions:
            return None  # it has ended meanwhile
        self._touch(session)
        return session

    def close(self, session: AnySession) -> None:
        if session.id in self._sessions:
            self._end_key(session.record_key)

    async def end(self, session: HttpSession) -> None:
        """End the session at all replicas. Raises BusUnreachableError if that is uncertain."""
        await asyncio.shield(self._end_key(session.record_key))

    async def suspend_all(self) -> None:
        """Close all sessions here. Other replicas go on with them."""
        self._notices.close()
        self._streams.is_closing = True
        for session in list(self._by_key.values()):
            session.collect_undelivered()  # running calls get an error, which the next replica finds
            with contextlib.suppress(BusUnreachableError):
                await self._unrequested.leave(session)
            self.forget(session)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._unwatch()

    # -- the peers of a session here

    def deliver(self, session: SharedSession) -> None:
        self._unrequested.deliver(session)

    async def pass_on(self, session: SharedSession, message: Inbound | list[Inbound]) -> None:
        """Send answers and cancellations to the replicas that they are for. Raises BusUnreachableError."""
        silent = set[str]()  # replicas that do not take answers: a batch must not wait for each of them
        for each in message if isinstance(message, list) else [message]:
            if isinstance(each, Response):
                await self._pass_answer(session, each, silent)
            elif isinstance(each, Notification) and each.method == CANCELLED:
                self._pass_cancellation(session, each)

    async def resume(self, session: SharedSession, id: str, principal: Principal) -> tuple[EventStream, int] | None:
        return await self._streams.resume(session, id, principal)

    def keep_request(self, session: SharedSession, stream: EventStream, message: Inbound | list[Inbound]) -> None:
        self._streams.keep_request(session, stream, message)

    @contextlib.asynccontextmanager
    async def listen(self, session: SharedSession, stream: EventStream) -> AsyncGenerator[None]:
        if not session.is_get_stream(stream):
            yield
            return
        await self._unrequested.begin(session)
        try:
            yield
        finally:
            if not session.has_listener and session.id in self._sessions:
                self._start(self._unrequested.end(session))

    async def _pass_answer(self, session: SharedSession, answer: Response, silent: set[str]) -> None:
        asked = parse_id(answer.id) if isinstance(answer.id, str) else None
        if asked is None or asked.replica in (session.replica, *silent) or not isinstance(answer.id, str):
            return
        data = msgspec.json.encode(_Answer(session.key, answer.id, answer.result, answer.error))
        try:
            await self._bus.mail.send(asked.replica, ANSWER, data, ANSWER_TIME)
        except (UndeliveredError, NoReplyError) as error:
            silent.add(asked.replica)
            log.info("an answer of a client was dropped: %s", error)

    async def _receive_answer(self, data: bytes) -> bytes:
        answer = _decode_answer(data)
        session = self._by_key.get(answer.session)
        if session is not None:
            session.session.resolve_response(Response(answer.id, answer.result, answer.error))
        return b""

    def _pass_cancellation(self, session: SharedSession, notification: Notification) -> None:
        id = notification.params.get("requestId")
        if is_id(id) and id not in session.session.in_flight:
            self._publish(_Notice(session.key, "cancel", id))

    # -- notices of other replicas

    def _publish(self, notice: _Notice) -> None:
        with contextlib.suppress(UnicodeEncodeError, OverflowError):  # an id that no request can have had
            self._bus.topics.publish(TOPIC, msgspec.msgpack.encode(notice))

    def _receive_notice(self, data: bytes) -> None:
        notice = _decode_notice(data)
        session = self._by_key.get(notice.session)
        if session is None:
            return
        match notice.kind:
            case "cancel" if notice.id is not None:
                session.session.cancel(notice.id)
            case "end":
                self.forget(session)
            case "change" if session.listener == session.replica:
                self._start(self._refresh(session))
            case _:
                return

    def note_change(self, session: SharedSession) -> None:
        self._publish(_Notice(session.key, "change"))

    async def _refresh(self, session: SharedSession) -> None:
        """Learn what another replica changed of a session whose client reads here."""
        with contextlib.suppress(BusUnreachableError):
            data = await self._store.read(session.key)
            record = None if data is None else decode_record(data)
            if data is not None and record is not None and session.id in self._sessions:
                await self._build(session.id, session.key, data, record, session.principal)

    def _look_soon(self) -> None:
        """Look at the sessions here: notices may have been lost."""
        self._start(self._look(list(self._by_key.values())))

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(TOUCH)
            await self._look([session for session in self._by_key.values() if session.is_busy], touch=True)

    async def _look(self, sessions: list[SharedSession], *, touch: bool = False) -> None:
        """Read the records of sessions, and forget those that have ended."""
        for begin in range(0, len(sessions), CHUNK):
            some = sessions[begin : begin + CHUNK]
            try:
                records = await self._store.read_many([session.key for session in some], touch=touch)
            except BusUnreachableError:
                return  # with the next
            for session, data in zip(some, records, strict=True):
                if data is None and session.id in self._sessions:
                    self.forget(session)

    # -- inside

    def _create(self, principal: Principal) -> SharedSession:
        return self._create_session(principal, "")

    def _create_session(self, principal: Principal, id: str) -> SharedSession:
        streams, name = self._bus.streams, self._bus.replica.name
        return SharedSession(principal, self._transport, self._store, streams, name, self, events=self._events, key=id)

    async def _build(
        self, id: str, key: str, data: bytes, record: SessionRecord, principal: Principal
    ) -> SharedSession | None:
        """Return the session as its record says. Several requests at once build it once."""
        while (building := self._building.get(key)) is not None and not building.done():
            await asyncio.shield(building)
        session = self._by_key.get(key)
        if session is None:
            session = self._create_session(principal, id)
            session.take_record(data, record)
            if len(self._sessions) >= self._most:
                self._evict_largest(principal)
            self._keep(session)
        else:
            session.take_record(data, record)
        if record.revision and (
            not session.is_listed or set(session.record.subscribed) != set(session.session.subscribed)
        ):
            building = self._building[key] = self._start(self._follow_subscriptions(session))
            building.add_done_callback(partial(self._end_building, key))
            await asyncio.shield(building)
        return self._by_key.get(key)

    def _end_building(self, key: str, building: "asyncio.Task[None]") -> None:
        if self._building.get(key) is building:  # else another one has begun since it ended
            del self._building[key]

    async def _follow_subscriptions(self, session: SharedSession) -> None:
        session.is_listed = True
        await self._share(session.session, session.record.subscribed)
        session.note_subscriptions()

    def _keep(self, session: SharedSession) -> None:
        self._add(session)
        self._by_key[session.key] = session
        self._watch()

    def _remove(self, session: AnySession) -> None:
        super()._remove(session)
        self._by_key.pop(session.record_key, None)

    def _evict(self, session: AnySession) -> None:
        self.forget(session)

    def _end_key(self, key: str) -> "asyncio.Task[None]":
        """End a session at all replicas, and return the removal of its record."""
        session = self._by_key.get(key)
        if session is not None:
            self.forget(session)
        self._ended.add(key)
        self._publish(_Notice(key, "end"))
        removal = asyncio.get_running_loop().create_task(self._remove_record(key))
        removal.add_done_callback(lambda _: self._retry_removal(key, removal))
        self._tasks.add(removal)
        removal.add_done_callback(self._tasks.discard)
        return removal

    async def _remove_record(self, key: str) -> None:
        await self._store.remove(key)
        await self._bus.streams.delete(key)
        self._ended.discard(key)

    def _retry_removal(self, key: str, removal: "asyncio.Task[None]") -> None:
        if not removal.cancelled() and removal.exception() is not None:
            self._start(self._remove_later(key))

    async def _remove_later(self, key: str) -> None:
        """Remove a session as soon as Redis is back, before it would have expired."""
        until = time.monotonic() + self._idle
        while key in self._ended and time.monotonic() < until:
            await asyncio.sleep(RETRY)
            with contextlib.suppress(BusUnreachableError):
                await self._remove_record(key)
        self._ended.discard(key)

    def _start(self, work: Any) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
