"""Keep the sessions of HTTP clients, found by an unguessable id, bound to their owner, and ended when idle."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Protocol

import msgspec

from toolgate.server.base.limits.budget import Budget
from toolgate.server.base.principals.principal import GrantKey, Principal
from toolgate.server.protocol.session import Session
from toolgate.transports.http.sessions.event_stream import EventStream
from toolgate.transports.http.sessions.session import HttpSession
from toolgate.transports.http.sessions.session_backend import SessionBackend

IDLE = 30 * 60.0  # seconds without a request or an open stream; later requests get a 404 and must initialize again
MAX_SESSIONS = 10_000  # of one server, about 60 MiB; beyond it the longest idle one ends
MAX_PER_OWNER = 100  # of one owner: some hosts open a session per message, and must not displace others
MAX_PER_PERSON = 300  # of one person, through any number of clients: anyone may register more clients

Key = str | bytes  # a session's id, or a dormant one's digest, which as bytes equals no client's text


class DormantSession(msgspec.Struct, eq=False):
    """An earlier process's session, until its client returns."""

    record_key: str
    process: str  # that had it open
    principal: Principal
    rights: Collection[GrantKey]
    last_used: float
    is_busy: bool = False
    is_stored: bool = True

    @property
    def id(self) -> bytes:
        return self.record_key.encode()

    @property
    def owner(self) -> str:
        return self.principal.owner


AnySession = HttpSession | DormantSession


class SessionStore(Protocol):
    """What the sessions of one transport have outside this process: rows for its next one, or Redis for other servers.

    is_shared: other servers have the same sessions, too. Each request has to ask for its session, and one that there is
        no room for here goes on elsewhere.
    replica: the name of this server among those, or ""
    """

    @property
    def is_shared(self) -> bool: ...

    @property
    def replica(self) -> str: ...

    def serve(self, sessions: "Sessions") -> None:
        """Learn whose sessions these are. Called once, first."""
        ...

    def open_backend(self, session: HttpSession) -> SessionBackend:
        """Return what stores a new session."""
        ...

    async def recall(self) -> None:
        """Take up the sessions of earlier processes, or follow those of other servers. Raises StateError."""
        ...

    async def add(self, session: HttpSession) -> None:
        """Store a new session, within the limits of all servers. Raises StateError."""
        ...

    async def wake(self, id: str, principal: Principal) -> HttpSession | None:
        """Return the session `id` of another process if this principal owns it. Raises StateError."""
        ...

    def remove(self, session: AnySession) -> "asyncio.Future[None] | None":
        """Return the removal of an ended session's record, if it has one."""
        ...

    async def suspend(self) -> None:
        """Close all sessions here, for the next process or other servers to go on with."""
        ...

    def watch(self) -> None:
        """Begin what is done from time to time while there are sessions."""
        ...

    def unwatch(self) -> None:
        """End it."""
        ...


class Sessions:
    """The sessions of one `transport`. `on_end` is called for each that ends. `store` has them outside this process.

    `per_owner` limits one owner's sessions, `per_person` one person's; None if there is only one. `events` bounds the
    bytes in all streams of a principal. `create_id` returns the id of a new session.
    """

    def __init__(
        self,
        on_end: Callable[[Session], None],
        store: SessionStore,
        *,
        idle: float = IDLE,
        limit: int = MAX_SESSIONS,
        per_owner: int | None = None,
        per_person: int | None = None,
        transport: str = "",
        events: Budget | None = None,
        create_id: Callable[[], str] = str,
    ) -> None:
        self.idle = idle
        self._on_end = on_end
        self._store = store
        self._create_id = create_id
        self._events = events
        self._transport = transport
        self._most = limit
        self._each = limit if per_owner is None else per_owner
        self._personal = limit if per_person is None else per_person
        self._sessions: OrderedDict[Key, AnySession] = OrderedDict()  # longest idle first
        self._of_owner: dict[str, OrderedDict[Key, AnySession]] = {}  # the same, by owner
        self._of_person: dict[str, OrderedDict[Key, AnySession]] = {}  # the same, by person
        self._expiry_timer: asyncio.TimerHandle | None = None
        store.serve(self)

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

    def count_free(self) -> int:
        """Return how many more sessions have room."""
        return max(0, self._most - len(self._sessions))

    def has(self, session: AnySession) -> bool:
        """Return whether this very session is open here."""
        return self._sessions.get(session.id) is session

    def find_dormant(self, id: bytes) -> DormantSession | None:
        """Return the dormant session with this digest."""
        found = self._sessions.get(id)
        return found if isinstance(found, DormantSession) else None

    async def recall(self) -> None:
        """Load the sessions of earlier processes as dormant, or follow other servers. Raises StateError."""
        await self._store.recall()

    def open(self, principal: Principal) -> HttpSession | None:
        """Return a new session, or None if there are too many, all busy: in total, of this owner or of this person."""
        if not self._make_room(principal):
            return None
        made = self.create(principal, self._create_id())
        self.add(made)
        return made

    async def admit(self, principal: Principal) -> HttpSession | None:
        """Return a new session like `open`, within the limits of all servers. Raises StateError."""
        session = self.open(principal)
        if session is None:
            return None
        try:
            await self._store.add(session)
        except BaseException:
            self.forget(session)
            raise
        return session

    def create(
        self,
        principal: Principal,
        key: str,
        open_backend: Callable[[HttpSession], SessionBackend] | None = None,
    ) -> HttpSession:
        """Return a session with this id, which is not open yet. "" stands for a new id."""
        opener = open_backend or self._store.open_backend
        return HttpSession(principal, self._transport, opener, self._events, key=key, replica=self._store.replica)

    def find(self, id: str, principal: Principal) -> HttpSession | None:
        """Return the session `id` if this principal owns it; it lives on, with the newest token's scopes. Shared ones
        are not found: see `wake`."""
        session: AnySession | None = None if self._store.is_shared else self._sessions.get(id)
        if session is None or isinstance(session, DormantSession):
            return None
        return session if self.use(session, principal) else None

    def use(self, session: HttpSession, principal: Principal) -> bool:
        """Have a session live on with a token's scopes. Return False if the principal does not own it."""
        if session.owner != principal.owner:
            return False
        if session.principal is not principal and not session.use(principal):
            return False
        self.touch(session)
        return True

    async def wake(self, id: str, principal: Principal) -> HttpSession | None:
        """Return the session `id` of an earlier process, or a shared one, if this principal owns it. Raises
        StateError."""
        return await self._store.wake(id, principal)

    def close(self, session: AnySession) -> None:
        """End the session for good."""
        if self.has(session):
            self.forget(session)
            self._store.remove(session)

    async def end(self, session: HttpSession) -> None:
        """End the session and wait until no other process can resume it. Raises StateError if that is uncertain."""
        self.forget(session)
        removal = self._store.remove(session)
        if removal is not None:
            await asyncio.shield(removal)

    def close_by_rights(self, rights: Collection[GrantKey]) -> None:
        """End all sessions that used one of these grants."""
        for session in [each for each in self._sessions.values() if not frozenset(rights).isdisjoint(each.rights)]:
            self.close(session)

    def close_all(self) -> None:
        for session in list(self._sessions.values()):
            self.close(session)
        self._unwatch()

    async def suspend_all(self) -> None:
        """Close all sessions here, for the next process or other servers to go on with."""
        self._unwatch()
        await self._store.suspend()

    def forget_all(self) -> None:
        """Close all sessions here. Their records stay."""
        for session in list(self._sessions.values()):
            self.forget(session)

    def forget(self, session: AnySession) -> None:
        """Close the session here. Its record, if there is one, stays."""
        if self.has(session):
            self._remove(session)
            if isinstance(session, HttpSession):
                self.discard(session)

    def discard(self, session: HttpSession) -> None:
        """Close a session that is not among these."""
        session.end()
        self._on_end(session.session)

    def add(self, session: AnySession) -> None:
        self._insert(session)
        self.watch()

    def add_first(self, session: AnySession) -> None:
        """Add a session as the longest idle one."""
        self._insert(session)
        self._sessions.move_to_end(session.id, last=False)
        for by, key in self._keys(session):
            by[key].move_to_end(session.id, last=False)

    def replace(self, dormant: DormantSession, session: HttpSession) -> None:
        """Have an awake session in the place of a dormant one."""
        self._remove(dormant)
        self.add(session)

    def _insert(self, session: AnySession) -> None:
        self._sessions[session.id] = session
        for by, key in self._keys(session):
            by.setdefault(key, OrderedDict())[session.id] = session

    def _remove(self, session: AnySession) -> None:
        del self._sessions[session.id]
        for by, key in self._keys(session):
            del by[key][session.id]
            if not by[key]:
                del by[key]

    def watch(self) -> None:
        """Begin what is done from time to time."""
        if self._expiry_timer is None and self._sessions:
            self._expiry_timer = asyncio.get_running_loop().call_later(self.idle, self.expire)
        self._store.watch()

    def _unwatch(self) -> None:
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        self._expiry_timer = None
        self._store.unwatch()

    def expire(self) -> None:
        """Close the sessions whose time is over."""
        self._expiry_timer = None
        now = time.monotonic()
        wait = self.idle
        for session in list(self._sessions.values()):
            if session.is_busy:
                self.touch(session)
                continue
            left = session.last_used + self.idle - now
            if left > 0:
                wait = left
                break
            self._evict(session)
        if self._sessions:
            self._expiry_timer = asyncio.get_running_loop().call_later(max(wait, 0.05), self.expire)

    def touch(self, session: AnySession) -> None:
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
        return len(self._sessions) < self._most or self.evict_largest(principal)

    def evict_largest(self, principal: Principal) -> bool:
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
        """End an idle session, or leave a shared one to other servers."""
        (self.forget if self._store.is_shared else self.close)(session)


def _only_awake(among: Iterable[AnySession]) -> Iterator[HttpSession]:
    return (session for session in among if isinstance(session, HttpSession))
