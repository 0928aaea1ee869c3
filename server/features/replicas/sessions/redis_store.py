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

from toolgate.server.base.bus.bus import Bus, BusUnreachableError, NoReplyError, UndeliveredError
from toolgate.server.base.bus.replica_ids import parse_id
from toolgate.server.base.principals.principal import Principal
from toolgate.server.features.replicas.sessions.record import SessionRecord, decode_record
from toolgate.server.features.replicas.sessions.redis_backend import RedisBackend, SessionEndedError
from toolgate.server.features.replicas.sessions.redis_records import RedisSessionRecords
from toolgate.server.features.replicas.sessions.resumed_streams import ResumedStreams
from toolgate.server.features.replicas.sessions.session_limits import SessionLimits
from toolgate.server.features.replicas.sessions.unrequested_messages import UnrequestedMessages
from toolgate.server.protocol.dispatcher import Dispatcher
from toolgate.server.protocol.message_ids import Id, is_id
from toolgate.server.protocol.messages import Inbound, Notification, Request, Response
from toolgate.server.protocol.session import Session, hash_key
from toolgate.transports.http.sessions.event_stream import EventStream
from toolgate.transports.http.sessions.session import HttpSession
from toolgate.transports.http.sessions.sessions import IDLE, AnySession, Sessions

TOPIC = "sessions"
ANSWER = "session-answer"  # mail: a client's answer to a question
ANSWER_TIME = 5.0  # seconds for the replica that asked to take it
TOUCH = 60.0  # seconds between two looks at the sessions that have work or a reader here: they do not expire
CHUNK = 100  # sessions that are looked at in one round trip
RETRY = 1.0  # seconds between two tries to remove a session while Redis is away
CANCELLED = "notifications/cancelled"

log = logging.getLogger("toolgate.http")


class _SessionNotice(msgspec.Struct, array_like=True, frozen=True):
    """What all replicas learn of a session: "cancel" with the id of a request, "end", or "change"."""

    session: str
    kind: str
    id: Id | None = None


class _ClientAnswer(msgspec.Struct, array_like=True, frozen=True):
    session: str
    id: str
    result: Any
    error: Any


_decode_notice = msgspec.msgpack.Decoder(_SessionNotice).decode
_decode_answer = msgspec.json.Decoder(_ClientAnswer).decode


class RedisSessionStore:
    """The sessions of one transport at all replicas. `share(session, uris)` follows the session's subscriptions here.

    `per_owner` and `per_person` limit the sessions of all replicas; None if there is only one person. A record ends
    `idle` seconds after its last use. `now` is the clock of all replicas, in seconds since the epoch.
    `may_repeat(request)`: whether a call may be made again after its replica died.
    """

    is_shared = True

    def __init__(
        self,
        bus: Bus,
        dispatcher: Dispatcher,
        *,
        share: Callable[[Session, Iterable[str]], Awaitable[None]],
        may_repeat: Callable[[Request], bool],
        per_owner: int | None = None,
        per_person: int | None = None,
        idle: float = IDLE,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.replica = bus.replica.name
        self._bus = bus
        self._share = share
        self._idle = idle
        self._records = RedisSessionRecords(bus.keys, idle, now)
        self._limits: SessionLimits | None = None
        if per_owner is not None and per_person is not None:
            self._limits = SessionLimits(bus.keys, self._records, per_owner, per_person)
        self._by_key: dict[str, RedisBackend] = {}  # of open sessions, by the digest of the id
        self._streams = ResumedStreams(bus, self._find, dispatcher, may_repeat)
        self._unrequested = UnrequestedMessages(bus, self._records, self._by_key.get)
        self._building: dict[str, asyncio.Task[None]] = {}
        self._ended: set[str] = set()  # that are not removed from Redis yet
        self._tasks: set[asyncio.Task[Any]] = set()
        bus.mail.receive(ANSWER, self._receive_answer)
        self._notices = bus.topics.subscribe(TOPIC, self._receive_notice, self._look_soon)

    def serve(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def open_backend(self, session: HttpSession) -> RedisBackend:
        shared = RedisBackend(session, self._records, self._bus.streams, self)
        self._by_key[shared.key] = shared
        return shared

    def watch(self) -> None: ...

    def unwatch(self) -> None: ...

    # -- opening, finding and ending

    async def recall(self) -> None:
        """Follow what other replicas say of sessions, from before the first request on."""
        with contextlib.suppress(BusUnreachableError):
            await self._notices.confirm()
        self._start(self._keep_alive())

    async def add(self, session: HttpSession) -> None:
        shared = self._by_key[session.record_key]
        if self._limits is not None:
            for key in await self._limits.add(shared.key, session.principal):
                self._end(key)
        await shared.add()

    async def wake(self, id: str, principal: Principal) -> HttpSession | None:
        """Return the session `id`, built here if need be, if it is the principal's. Raises BusUnreachableError."""
        key = hash_key(id)
        data = await self._records.read(key)
        shared = self._by_key.get(key)
        if data is None or key in self._ended:
            if shared is not None:
                self.forget(shared)
            return None
        if shared is None or shared.data != data:
            record = decode_record(data)
            if record is None or record.owner != principal.owner:
                return None
            shared = await self._build(id, key, data, record, principal)
        if shared is None or not self._sessions.use(shared.session, principal):
            return None
        if shared.note_use():
            try:
                await shared.merge()
            except SessionEndedError:
                self.forget(shared)
                return None
        return shared.session if self._sessions.has(shared.session) else None  # it may have ended meanwhile

    def remove(self, session: AnySession) -> "asyncio.Future[None]":
        return self._end(session.record_key)

    async def suspend(self) -> None:
        """Close all sessions here. Other replicas go on with them."""
        self._notices.close()
        self._streams.is_closing = True
        for shared in list(self._by_key.values()):
            shared.session.collect_undelivered()  # running calls get an error, which the next replica finds
            with contextlib.suppress(BusUnreachableError):
                await self._unrequested.leave(shared)
            self.forget(shared)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _find(self, key: str) -> HttpSession | None:
        """Return the session with this digest, if it is open here."""
        shared = self._by_key.get(key)
        return None if shared is None else shared.session

    # -- the peers of a session here

    def deliver(self, shared: RedisBackend) -> None:
        self._unrequested.deliver(shared)

    def forget(self, shared: RedisBackend) -> None:
        self._sessions.forget(shared.session)

    def note_end(self, shared: RedisBackend) -> None:
        if self._by_key.get(shared.key) is shared:
            del self._by_key[shared.key]

    async def pass_on(self, session: HttpSession, message: Inbound | list[Inbound]) -> None:
        """Send answers and cancellations to the replicas that they are for. Raises BusUnreachableError."""
        silent = set[str]()  # replicas that do not take answers: a batch must not wait for each of them
        for each in message if isinstance(message, list) else [message]:
            if isinstance(each, Response):
                await self._pass_answer(session, each, silent)
            elif isinstance(each, Notification) and each.method == CANCELLED:
                self._pass_cancellation(session, each)

    async def resume(self, session: HttpSession, id: str, principal: Principal) -> tuple[EventStream, int] | None:
        return await self._streams.resume(session, id, principal)

    def keep_request(self, session: HttpSession, stream: EventStream, message: Inbound | list[Inbound]) -> None:
        self._streams.keep_request(session, stream, message)

    @contextlib.asynccontextmanager
    async def listen(self, shared: RedisBackend, stream: EventStream) -> AsyncGenerator[None]:
        session = shared.session
        if not session.is_get_stream(stream):
            yield
            return
        await self._unrequested.begin(shared)
        try:
            yield
        finally:
            if not session.has_listener and self._sessions.has(session):
                self._start(self._unrequested.end(shared))

    async def _pass_answer(self, session: HttpSession, answer: Response, silent: set[str]) -> None:
        asked = parse_id(answer.id) if isinstance(answer.id, str) else None
        if asked is None or asked.replica in (session.replica, *silent) or not isinstance(answer.id, str):
            return
        data = msgspec.json.encode(_ClientAnswer(session.record_key, answer.id, answer.result, answer.error))
        try:
            await self._bus.mail.send(asked.replica, ANSWER, data, ANSWER_TIME)
        except (UndeliveredError, NoReplyError) as error:
            silent.add(asked.replica)
            log.info("an answer of a client was dropped: %s", error)

    async def _receive_answer(self, data: bytes) -> bytes:
        answer = _decode_answer(data)
        session = self._find(answer.session)
        if session is not None:
            session.session.resolve_response(Response(answer.id, answer.result, answer.error))
        return b""

    def _pass_cancellation(self, session: HttpSession, notification: Notification) -> None:
        id = notification.params.get("requestId")
        if is_id(id) and id not in session.session.in_flight:
            self._publish(_SessionNotice(session.record_key, "cancel", id))

    # -- notices of other replicas

    def _publish(self, notice: _SessionNotice) -> None:
        with contextlib.suppress(UnicodeEncodeError, OverflowError):  # an id that no request can have had
            self._bus.topics.publish(TOPIC, msgspec.msgpack.encode(notice))

    def _receive_notice(self, data: bytes) -> None:
        notice = _decode_notice(data)
        shared = self._by_key.get(notice.session)
        if shared is None:
            return
        match notice.kind:
            case "cancel" if notice.id is not None:
                shared.session.session.cancel(notice.id)
            case "end":
                self.forget(shared)
            case "change" if shared.listener == shared.replica:
                self._start(self._refresh(shared))
            case _:
                return

    def note_change(self, shared: RedisBackend) -> None:
        self._publish(_SessionNotice(shared.key, "change"))

    async def _refresh(self, shared: RedisBackend) -> None:
        """Learn what another replica changed of a session whose client reads here."""
        with contextlib.suppress(BusUnreachableError):
            data = await self._records.read(shared.key)
            record = None if data is None else decode_record(data)
            session = shared.session
            if data is not None and record is not None and self._sessions.has(session):
                await self._build(session.id, shared.key, data, record, session.principal)

    def _look_soon(self) -> None:
        """Look at the sessions here: notices may have been lost."""
        self._start(self._look(list(self._by_key.values())))

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(TOUCH)
            await self._look([each for each in self._by_key.values() if each.session.is_busy], touch=True)

    async def _look(self, sessions: list[RedisBackend], *, touch: bool = False) -> None:
        """Read the records of sessions, and forget those that have ended."""
        for begin in range(0, len(sessions), CHUNK):
            some = sessions[begin : begin + CHUNK]
            try:
                records = await self._records.read_many([each.key for each in some], touch=touch)
            except BusUnreachableError:
                return  # with the next
            for shared, data in zip(some, records, strict=True):
                if data is None:
                    self.forget(shared)

    # -- inside

    async def _build(
        self, id: str, key: str, data: bytes, record: SessionRecord, principal: Principal
    ) -> RedisBackend | None:
        """Return the session as its record says. Several requests at once build it once."""
        while (building := self._building.get(key)) is not None and not building.done():
            await asyncio.shield(building)
        shared = self._by_key.get(key)
        if shared is None:
            session = self._sessions.create(principal, id)
            shared = self._by_key[key]
            try:
                shared.take_record(data, record)
            except BaseException:  # it holds what can't be read
                self._sessions.discard(session)
                raise
            if not self._sessions.count_free():
                self._sessions.evict_largest(principal)
            self._sessions.add(session)
        else:
            shared.take_record(data, record)
        subscribed = set(shared.session.session.subscribed)
        if record.revision and (not shared.is_listed or set(shared.record.subscribed) != subscribed):
            building = self._building[key] = self._start(self._follow_subscriptions(shared))
            building.add_done_callback(partial(self._end_building, key))
            await asyncio.shield(building)
        return self._by_key.get(key)

    def _end_building(self, key: str, building: "asyncio.Task[None]") -> None:
        if self._building.get(key) is building:  # else another one has begun since it ended
            del self._building[key]

    async def _follow_subscriptions(self, shared: RedisBackend) -> None:
        shared.is_listed = True
        await self._share(shared.session.session, shared.record.subscribed)
        shared.note_subscriptions()

    def _end(self, key: str) -> "asyncio.Task[None]":
        """End a session at all replicas, and return the removal of its record."""
        shared = self._by_key.get(key)
        if shared is not None:
            self.forget(shared)
        self._ended.add(key)
        self._publish(_SessionNotice(key, "end"))
        removal = asyncio.get_running_loop().create_task(self._remove_record(key))
        removal.add_done_callback(lambda _: self._retry_removal(key, removal))
        self._tasks.add(removal)
        removal.add_done_callback(self._tasks.discard)
        return removal

    async def _remove_record(self, key: str) -> None:
        await self._records.remove(key)
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
