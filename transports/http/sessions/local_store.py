"""Store the sessions of one server for its next process: a session goes on when its client comes back."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from toolgate.server.base.errors import StateError
from toolgate.server.base.principals.principal import Principal
from toolgate.server.protocol.revisions import WITH_SESSION
from toolgate.server.protocol.session import Session, hash_key
from toolgate.server.state.rows.sessions import SessionRecords, StoredEvent, StoredSession
from toolgate.transports.http.sessions.local_backend import LocalBackend, restore_session
from toolgate.transports.http.sessions.session import HttpSession
from toolgate.transports.http.sessions.sessions import AnySession, DormantSession, Sessions

NOTE = 60.0  # seconds between updates of the stored last uses, which kill -9 loses
RETRY = 1.0  # seconds between two attempts to recall sessions
MAX_UNDELIVERED = 32 * 2**20  # bytes of messages that all sessions leave to the next process

log = logging.getLogger("toolgate.http")


class LocalSessionStore:
    """The rows of the sessions of one transport. Without `records` there are none.

    `take_up(session, uris)` resumes an earlier process's session. `note_interval` is in seconds, for storing last uses.
    """

    is_shared = False
    replica = ""

    def __init__(
        self,
        records: SessionRecords | None = None,
        take_up: Callable[[Session, Iterable[str]], Awaitable[None]] | None = None,
        note_interval: float = NOTE,
    ) -> None:
        self._records = records
        self._take_up = take_up
        self._note_every = note_interval
        self._note_timer: asyncio.TimerHandle | None = None
        self._note_time = time.monotonic()  # earlier uses are stored
        self._waking: dict[bytes, asyncio.Task[None]] = {}  # dormant sessions being resumed
        self._recall_failed_at: float | None = None  # time of the last failed recall
        self._undropped: dict[str, str] = {}  # records of ended sessions not removed yet → their owner

    def serve(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def open_backend(self, session: HttpSession) -> LocalBackend:
        return LocalBackend(session, self._records)

    async def recall(self) -> None:
        """Load the sessions of earlier processes as dormant. Raises StateError; later requests try again."""
        if self._records is None:
            return
        self._recall_failed_at = time.monotonic()
        for found in reversed(await self._records.list_orphaned(self._sessions.idle, self._sessions.count_free())):
            self._sessions.add_first(_create_dormant(found, self._records.now()))
        self._recall_failed_at = None
        self._sessions.expire()
        self._sessions.watch()

    async def add(self, session: HttpSession) -> None:
        """Do nothing: a session is stored once it is initialized."""

    async def wake(self, id: str, principal: Principal) -> HttpSession | None:
        """Return the session `id` of an earlier process if this principal owns it. Unknown ids cost no database access.
        Raises StateError."""
        if self._recall_failed_at is not None:
            await self._recall_again(self._recall_failed_at)
        key = hash_key(id).encode()
        stored = self._sessions.find_dormant(key)
        if stored is None or stored.owner != principal.owner:
            return None
        task = self._waking.get(key)
        if task is None:
            task = self._waking[key] = asyncio.get_running_loop().create_task(self._wake_dormant(id, stored, principal))
            task.add_done_callback(lambda _: self._waking.pop(key))
        await asyncio.shield(task)
        return self._sessions.find(id, principal)

    def remove(self, session: AnySession) -> "asyncio.Future[None] | None":
        if not session.is_stored:
            return None
        self._undropped[session.record_key] = session.process
        return self._drop_again()

    async def suspend(self) -> None:
        """Close all sessions here, for the next process to resume. If they can't be stored they end for good."""
        if self._records is None:
            self._sessions.forget_all()
            return
        left: dict[str, list[StoredEvent]] = {}
        size = 0
        awake = self._sessions.list_open()
        for each in reversed([each for each in awake if each.is_stored]):
            messages = each.collect_undelivered()
            size += sum(len(message.data) for message in messages)
            left[each.record_key] = messages if size <= MAX_UNDELIVERED else []
        try:
            await self._records.save_pending(self._last_uses(self._records, awake), left)
            if self._undropped:
                await self._records.remove(self._undropped)
        except StateError as error:
            log.warning("undelivered messages of sessions are not saved for the next process: %s", error)
        self._sessions.forget_all()

    def watch(self) -> None:
        if self._note_timer is None and (len(self._sessions) or self._undropped) and self._records is not None:
            note = partial(self._note, self._records)
            self._note_timer = asyncio.get_running_loop().call_later(self._note_every, note)

    def unwatch(self) -> None:
        if self._note_timer is not None:
            self._note_timer.cancel()
        self._note_timer = None

    async def _recall_again(self, tried: float) -> None:
        """Recall sessions. StateError soon after a failed attempt: a 404 would end the client's session."""
        if time.monotonic() - tried < RETRY:
            raise StateError("the sessions of earlier processes can't be read: try again")
        await self.recall()

    async def _wake_dormant(self, id: str, dormant: DormantSession, principal: Principal) -> None:
        records, sessions = self._records, self._sessions
        assert records is not None  # it had the session
        taken = await records.take_over(dormant.record_key)
        if not sessions.has(dormant):
            return  # it has ended meanwhile
        if taken is None or taken.details.revision not in WITH_SESSION:
            sessions.close(dormant)
            return
        woken = sessions.create(principal, id, partial(LocalBackend, records=records, is_stored=True))
        restore_session(woken, taken, records.workspace)
        if self._take_up is not None:
            await self._take_up(woken.session, taken.details.subscribed)
        if sessions.has(dormant):
            sessions.replace(dormant, woken)
        else:
            sessions.discard(woken)

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
                self._sessions.watch()

        dropped.add_done_callback(keep_failed)
        return dropped

    def _note(self, records: SessionRecords) -> None:
        """Store which sessions were used since the last time."""
        self._note_timer = None
        since, self._note_time = self._note_time, time.monotonic()
        stored = [session for session in self._sessions.list_open() if session.is_stored]
        used = [session for session in stored if session.is_busy or session.last_used >= since]
        if used:
            records.mark_seen(self._last_uses(records, used)).add_done_callback(_log_failure)
        self._drop_again()
        self.watch()

    def _last_uses(self, records: SessionRecords, among: Iterable[HttpSession]) -> dict[str, float]:
        """Return the last use of each, in seconds since 1970."""
        now, epoch = time.monotonic(), records.now()
        return {each.record_key: epoch if each.is_busy else epoch - (now - each.last_used) for each in among}


def _create_dormant(found: StoredSession, now: float) -> DormantSession:
    seen = time.monotonic() - max(0.0, now - found.seen_at)
    principal = Principal(found.issuer, found.subject, found.client)
    return DormantSession(found.id, found.process, principal, found.grants or (principal.grant_key,), seen)


def _log_failure(done: "asyncio.Future[None]") -> None:
    if not done.cancelled() and done.exception() is not None:
        log.warning("the times of the sessions' last use are not saved: %s", done.exception())
