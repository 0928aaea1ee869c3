"""Keep the sessions of HTTP clients, found by an unguessable id, bound to their owner, and ended when idle.

After a restart a session continues when its client comes back.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping

import msgspec

from toolgate.server.base.budget import Budget
from toolgate.server.base.principal import GrantKey, Principal
from toolgate.server.protocol.revisions import WITH_SESSION
from toolgate.server.protocol.session import Session, hash_key
from toolgate.server.state.rows.sessions import SessionRecords, StoredEvent, StoredSession
from toolgate.server.state.store import StateError
from toolgate.transports.http.sessions.event_stream import EventStream
from toolgate.transports.http.sessions.session import HttpSession

IDLE = 30 * 60.0  # seconds without a request or an open stream; later requests get a 404 and must initialize again
MAX_SESSIONS = 10_000  # of one server, about 60 MiB; beyond it the longest idle one ends
MAX_PER_OWNER = 100  # of one owner: some hosts open a session per message, and must not displace others
MAX_PER_PERSON = 300  # of one person, through any number of clients: anyone may register more clients
NOTE = 60.0  # seconds between updates of the stored last uses, which kill -9 loses
RETRY = 1.0  # seconds between two attempts to recall sessions
MAX_UNDELIVERED = 32 * 2**20  # bytes of messages that all sessions leave to the next process

log = logging.getLogger("toolgate.http")

Key = str | bytes  # a session's id, or a dormant one's digest, which as bytes equals no client's text


class DormantSession(msgspec.Struct, eq=False):
    """An earlier process's session, until its client returns."""

    record_key: str
    process: str  # that had it open
    principal: Principal
    rights: Collection[GrantKey]
    last_used: float
    is_busy: bool = False

    @property
    def id(self) -> bytes:
        return self.record_key.encode()

    @property
    def owner(self) -> str:
        return self.principal.owner


AnySession = HttpSession | DormantSession


class Sessions:
    """The sessions of one `transport`. `on_end` is called for each that ends.

    `each` limits one owner's sessions, `personal` one person's; None if there is only one. `records` stores them, and
    `take_up(session, uris)` resumes an earlier process's; without it they end with the process. `note` is the interval
    in seconds for storing last uses. `events` bounds the bytes in all streams of a principal. `create_id` returns the
    id of a new session.
    """

    def __init__(
        self,
        on_end: Callable[[Session], None],
        *,
        idle: float = IDLE,
        limit: int = MAX_SESSIONS,
        per_owner: int | None = None,
        per_person: int | None = None,
        transport: str = "",
        records: SessionRecords | None = None,
        events: Budget | None = None,
        take_up: Callable[[Session, Iterable[str]], Awaitable[None]] | None = None,
        note_interval: float = NOTE,
        create_id: Callable[[], str] = str,
    ) -> None:
        self._on_end = on_end
        self._create_id = create_id
        self._records = records
        self._events = events
        self._take_up = take_up
        self._note_every = note_interval
        self._transport = transport
        self._idle = idle
        self._most = limit
        self._each = limit if per_owner is None else per_owner
        self._personal = limit if per_person is None else per_person
        self._sessions: OrderedDict[Key, AnySession] = OrderedDict()  # longest idle first
        self._of_owner: dict[str, OrderedDict[Key, AnySession]] = {}  # the same, by owner
        self._of_person: dict[str, OrderedDict[Key, AnySession]] = {}  # the same, by person
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._note_timer: asyncio.TimerHandle | None = None
        self._note_time = time.monotonic()  # earlier uses are stored
        self._waking: dict[Key, asyncio.Task[None]] = {}  # dormant sessions being resumed
        self._recall_failed_at: float | None = None  # time of the last failed recall
        self._undropped: dict[str, str] = {}  # records of ended sessions not removed yet → their owner

    def __len__(self) -> int:
        return len(self._sessions)

    def rights(self) -> Iterator[GrantKey]:
        """Yield the grants that have sessions, dormant ones included."""
        return (right for session in self._sessions.values() for right in session.rights)

    def streams(self) -> Iterator[EventStream]:
        """Yield the streams of all sessions."""
        return (stream for session in _only_awake(self._sessions.values()) for stream in session.streams.values())

    def list_open(self) -> list[HttpSession]:
        """Return the sessions of this process, dormant ones left out."""
        return list(_only_awake(self._sessions.values()))

    def of_person(self, name: str) -> list[HttpSession]:
        """Return all sessions of one person, through any client."""
        return list(_only_awake(self._of_person.get(name, {}).values()))

    async def recall(self) -> None:
        """Load the sessions of earlier processes as dormant. Raises StateError; later requests try again."""
        if self._records is None:
            return
        self._recall_failed_at = time.monotonic()
        for found in reversed(await self._records.list_orphaned(self._idle, max(0, self._most - len(self._sessions)))):
            self._add_first(_create_dormant(found, self._records.now()))
        self._recall_failed_at = None
        self._expire()
        self._watch()

    def open(self, principal: Principal) -> HttpSession | None:
        """Return a new session, or None if there are too many, all busy: in total, of this owner or of this person."""
        if not self._make_room(principal):
            return None
        made = self._create(principal)
        self._add(made)
        self._watch()
        return made

    async def admit(self, principal: Principal) -> HttpSession | None:
        """Return a new session like `open`, within the limits of all replicas."""
        return self.open(principal)

    def _create(self, principal: Principal) -> HttpSession:
        return HttpSession(principal, self._transport, self._records, self._events, key=self._create_id())

    def find(self, id: str, principal: Principal) -> HttpSession | None:
        """Return the session `id` if this principal owns it; it lives on, with the newest token's scopes."""
        session: AnySession | None = self._sessions.get(id)
        if session is None or isinstance(session, DormantSession) or session.owner != principal.owner:
            return None
        if session.principal is not principal and not session.use(principal):
            return None
        self._touch(session)
        return session

    async def wake(self, id: str, principal: Principal) -> HttpSession | None:
        """Return the session `id` of an earlier process if this principal owns it. Unknown ids cost no database access.
        Raises StateError."""
        if self._recall_failed_at is not None:
            await self._recall_again(self._recall_failed_at)
        key: Key = hash_key(id).encode()
        stored = self._sessions.get(key)
        if not isinstance(stored, DormantSession) or stored.owner != principal.owner:
            return None
        task = self._waking.get(key)
        if task is None:
            task = self._waking[key] = asyncio.get_running_loop().create_task(self._wake_dormant(id, stored, principal))
            task.add_done_callback(lambda _: self._waking.pop(key))
        await asyncio.shield(task)
        return self.find(id, principal)

    def close(self, session: AnySession) -> None:
        """End the session for good."""
        self._close(session)

    async def end(self, session: HttpSession) -> None:
        """End the session and wait until no later process can resume it. Raises StateError if that is uncertain."""
        dropped = self._close(session)
        if dropped is not None:
            await dropped

    def close_by_rights(self, rights: Collection[GrantKey]) -> None:
        """End all sessions that used one of these grants."""
        for session in [each for each in self._sessions.values() if not frozenset(rights).isdisjoint(each.rights)]:
            self.close(session)

    def close_all(self) -> None:
        for session in list(self._sessions.values()):
            self.close(session)
        self._unwatch()

    async def suspend_all(self) -> None:
        """End all sessions here, for the next process to resume. If they can't be stored they end for good."""
        if self._records is None:
            self.close_all()
            return
        self._unwatch()
        left: dict[str, list[StoredEvent]] = {}
        size = 0
        for awake in reversed([awake for awake in _only_awake(self._sessions.values()) if awake.is_recorded]):
            messages = awake.collect_undelivered()
            size += sum(len(message.data) for message in messages)
            left[awake.record_key] = messages if size <= MAX_UNDELIVERED else []
        try:
            await self._records.save_pending(self._last_uses(_only_awake(self._sessions.values())), left)
            if self._undropped:
                await self._records.remove(self._undropped)
        except StateError as error:
            log.warning("undelivered messages of sessions are not saved for the next process: %s", error)
        for session in list(self._sessions.values()):
            self.forget(session)

    async def _recall_again(self, tried: float) -> None:
        """Recall sessions. StateError soon after a failed attempt: a 404 would end the client's session."""
        if time.monotonic() - tried < RETRY:
            raise StateError("the sessions of earlier processes can't be read: try again")
        await self.recall()

    async def _wake_dormant(self, id: str, dormant: DormantSession, principal: Principal) -> None:
        assert self._records is not None
        taken = await self._records.take_over(dormant.record_key)
        if self._sessions.get(dormant.id) is not dormant:
            return  # it has ended meanwhile
        if taken is None or taken.details.revision not in WITH_SESSION:
            self.close(dormant)
            return
        woken = HttpSession(principal, self._transport, self._records, self._events, key=id, taken=taken)
        if self._take_up is not None:
            await self._take_up(woken.session, taken.details.subscribed)
        if self._sessions.get(dormant.id) is not dormant:
            self._on_end(woken.session)
            return
        self._remove(dormant)
        self._add(woken)

    def _close(self, session: AnySession) -> "asyncio.Future[None] | None":
        """End the session. Return the removal of its record, if it has one."""
        if session.id not in self._sessions:
            return None
        self.forget(session)
        if isinstance(session, HttpSession) and not session.is_recorded:
            return None
        return self._drop(session)

    def forget(self, session: AnySession) -> None:
        """Close the session here. Its record, if there is one, stays."""
        if session.id in self._sessions:
            self._remove(session)
            if isinstance(session, HttpSession):
                session.end()
                self._on_end(session.session)

    def _drop(self, session: AnySession) -> "asyncio.Future[None] | None":
        self._undropped[session.record_key] = session.process if isinstance(session, DormantSession) else ""
        return self._drop_again()

    def _drop_again(self) -> "asyncio.Future[None] | None":
        """Return the removal of all records of ended sessions."""
        if self._records is None or not self._undropped:
            return None
        tried = dict(self._undropped)
        self._undropped.clear()
        dropped = self._records.remove(tried)

        def keep_failed(dropped: "asyncio.Future[None]") -> None:
            if dropped.cancelled() or dropped.exception() is not None:
                self._undropped |= tried  # with the next
                log.warning("the records of ended sessions can't be removed yet")
                self._watch()

        dropped.add_done_callback(keep_failed)
        return dropped

    def _add(self, session: AnySession) -> None:
        self._sessions[session.id] = session
        for by, key in self._keys(session):
            by.setdefault(key, OrderedDict())[session.id] = session

    def _add_first(self, session: AnySession) -> None:
        """Add a session as the longest idle one."""
        self._add(session)
        self._sessions.move_to_end(session.id, last=False)
        for by, key in self._keys(session):
            by[key].move_to_end(session.id, last=False)

    def _remove(self, session: AnySession) -> None:
        del self._sessions[session.id]
        for by, key in self._keys(session):
            del by[key][session.id]
            if not by[key]:
                del by[key]

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        if self._expiry_timer is None and self._sessions:
            self._expiry_timer = loop.call_later(self._idle, self._expire)
        if self._note_timer is None and (self._sessions or self._undropped) and self._records is not None:
            self._note_timer = loop.call_later(self._note_every, self._note)

    def _unwatch(self) -> None:
        for timer in (self._expiry_timer, self._note_timer):
            if timer is not None:
                timer.cancel()
        self._expiry_timer = self._note_timer = None

    def _note(self) -> None:
        """Store which sessions were used since the last time."""
        assert self._records is not None
        self._note_timer = None
        since, self._note_time = self._note_time, time.monotonic()
        used = [
            session
            for session in _only_awake(self._sessions.values())
            if session.is_recorded and (session.is_busy or session.last_used >= since)
        ]
        if used:
            self._records.mark_seen(self._last_uses(used)).add_done_callback(_log_failure)
        self._drop_again()
        self._watch()

    def _last_uses(self, among: Iterable[AnySession]) -> dict[str, float]:
        """Return the last use of each, in seconds since 1970."""
        assert self._records is not None
        now, epoch = time.monotonic(), self._records.now()
        return {each.record_key: epoch if each.is_busy else epoch - (now - each.last_used) for each in among}

    def _expire(self) -> None:
        self._expiry_timer = None
        now = time.monotonic()
        wait = self._idle
        for session in list(self._sessions.values()):
            if session.is_busy:
                self._touch(session)
                continue
            left = session.last_used + self._idle - now
            if left > 0:
                wait = left
                break
            self._evict(session)
        if self._sessions:
            self._expiry_timer = asyncio.get_running_loop().call_later(max(wait, 0.05), self._expire)

    def _touch(self, session: AnySession) -> None:
        session.last_used = time.monotonic()
        id = session.id
        self._sessions.move_to_end(id)
        self._of_owner[session.owner].move_to_end(id)
        self._of_person[session.principal.name].move_to_end(id)

    def _keys(self, session: AnySession) -> tuple[tuple[dict[str, OrderedDict[Key, AnySession]], str], ...]:
        """Return the other indexes that hold a session, and its key there."""
        return (self._of_owner, session.owner), (self._of_person, session.principal.name)

    def _make_room(self, principal: Principal) -> bool:
        """End an idle session where there is no room for one more of this principal. Return whether there is room."""
        own: Mapping[Key, AnySession] = self._of_owner.get(principal.owner, {})
        if len(own) >= self._each and not self._evict_idle(own):
            return False
        personal: Mapping[Key, AnySession] = self._of_person.get(principal.name, {})
        if len(personal) >= self._personal and not self._evict_idle(personal):
            return False
        return len(self._sessions) < self._most or self._evict_largest(principal)

    def _evict_largest(self, principal: Principal) -> bool:
        """End an idle session of the person with most sessions, if that has no fewer than this principal."""
        own = len(self._of_person.get(principal.name, {}))
        largest = sorted(self._of_person.values(), key=len, reverse=True)
        return any(self._evict_idle(among) for among in largest if len(among) >= max(own, 1))

    def _evict_idle(self, among: Mapping[Key, AnySession]) -> bool:
        """End the longest idle session."""
        for session in among.values():
            if not session.is_busy:
                self._evict(session)
                return True
        return False

    def _evict(self, session: AnySession) -> None:
        """End an idle session."""
        self.close(session)


def _only_awake(among: Iterable[AnySession]) -> Iterator[HttpSession]:
    return (session for session in among if isinstance(session, HttpSession))


def _create_dormant(found: StoredSession, now: float) -> DormantSession:
    seen = time.monotonic() - max(0.0, now - found.seen_at)
    principal = Principal(found.issuer, found.subject, found.client)
    return DormantSession(found.id, found.process, principal, found.grants or (principal.grant_key,), seen)


def _log_failure(done: "asyncio.Future[None]") -> None:
    if not done.cancelled() and done.exception() is not None:
        log.warning("the times of the sessions' last use are not saved: %s", done.exception())
