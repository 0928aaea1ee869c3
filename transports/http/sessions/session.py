"""Hold a session of an HTTP client: its streams, and their events kept for resumption."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator

from toolgate.server.base.bus.replica_ids import format_id
from toolgate.server.base.limits.budget import Budget
from toolgate.server.base.principals.principal import GrantKey, Principal
from toolgate.server.base.principals.scopes import NOTHING, has_scopes, usable_scopes
from toolgate.server.protocol.interruption import RequestIds, interrupted_answer
from toolgate.server.protocol.messages import Outbound
from toolgate.server.protocol.session import Session
from toolgate.server.state.rows.sessions import StoredEvent
from toolgate.transports.http.sessions.event_ids import StreamName, StreamNames
from toolgate.transports.http.sessions.event_stream import ANSWER_MARK, EventStream
from toolgate.transports.http.sessions.session_backend import SessionBackend

PENDING_READER = object()  # the reader of a POST's stream until it attaches
MAX_GET_STREAMS = 8  # streams of GET requests: the specification allows several, and programs open one or two
MAX_STREAMS = 64  # kept for resumption, of one session; the oldest finished ones are dropped first
MAX_RIGHTS = 8  # grants of one session: each request for more permissions makes a new one
MAX_FINISHED_SIZE = 8 * 2**20  # bytes of finished streams kept for resumption, of one session
MAX_UNDELIVERED = 2 * 2**20  # bytes of answers that one session leaves to the next process; the newest are kept


class HttpSession:
    """A session and its streams, and the channel for unrequested messages, which go to an open GET stream or wait for
    one.

    `backend` stores it; `open_backend(session)` returns that. `key` is the id of a session that another process opened.
    `events` bounds the bytes in all streams of a principal. `replica` is the name of this process among those that
    share the session, or "".
    """

    def __init__(
        self,
        principal: Principal,
        transport: str,
        open_backend: "Callable[[HttpSession], SessionBackend]",
        events: Budget | None = None,
        *,
        key: str = "",
        replica: str = "",
    ) -> None:
        self.principal = principal
        self.rights: set[GrantKey] = {principal.grant_key}  # of all tokens that used it
        self.all_scopes = usable_scopes(principal.scopes)  # of any of them
        self.replica = replica
        self.session = Session(
            principal.name,
            self,
            owner=principal.owner,
            right=principal.grant_key,
            scopes=usable_scopes(principal.scopes),
            granted=usable_scopes(principal.grant_scopes),
            client=principal.client,
            transport=transport,
            key=key,
            id_prefix=format_id(replica, "") if replica else "",
        )
        self.id, self.owner = self.session.key, self.session.owner
        self.streams: OrderedDict[str, EventStream] = OrderedDict()
        self.began = time.time()
        self.last_used = time.monotonic()
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_ended = False
        self.process = ""  # this one has it open: see DormantSession
        self._events = events
        self._get_streams: list[EventStream] = []  # of GET requests, oldest first
        self._names = StreamNames(self.id, replica)
        self.backend = open_backend(self)

    @property
    def record_key(self) -> str:
        """The key of its record."""
        return self.session.place.key

    @property
    def is_stored(self) -> bool:
        """Whether another process can go on with it."""
        return self.backend.is_stored

    @property
    def is_busy(self) -> bool:
        """Whether it has running work or a reader: such a session does not expire."""
        return bool(self.tasks) or any(stream.reader is not None for stream in self.streams.values())

    def use(self, principal: Principal) -> bool:
        """Continue with another token of the owner and its scopes. Return False if too many grants were used. Revoking
        any of these grants ends the session, whichever token came last."""
        if principal.grant_key not in self.rights and len(self.rights) >= MAX_RIGHTS:
            return False
        scopes = union_scopes(self.all_scopes, usable_scopes(principal.scopes))
        is_new = principal.grant_key not in self.rights or scopes != self.all_scopes
        self.principal, self.all_scopes = principal, scopes
        self.rights.add(principal.grant_key)
        self.session.right = principal.grant_key
        self.session.scopes = usable_scopes(principal.scopes)
        self.session.granted = usable_scopes(principal.grant_scopes)
        if is_new:
            self.backend.note_rights()
        return True

    def open_stream(self, request_ids: RequestIds | None = None, scopes: frozenset[str] = NOTHING) -> EventStream:
        """Return a new stream that answers `request_ids`; resuming it needs `scopes`."""
        return self._keep_stream(self._create_stream(self._names.next(request_ids), scopes))

    def open_post_stream(self, request_ids: RequestIds | None = None, scopes: frozenset[str] = NOTHING) -> EventStream:
        """Return a new stream whose reader is about to attach, so that concurrent requests do not drop it for room."""
        made = self.open_stream(request_ids, scopes)
        made.attach(PENDING_READER)
        return made

    def open_get_stream(self, scopes: frozenset[str] | None = None) -> EventStream:
        """Return a GET stream for these scopes: a waiting one, a new one, or the oldest when there are MAX_GET_STREAMS.
        The oldest stream's reader is disconnected, and its unsent events go to the next."""
        for stream in self._get_streams:
            if stream.reader is None and not stream.ended and has_scopes(scopes, stream.wanted):
                return stream
        stream = self._take_oldest_stream(scopes) if len(self._get_streams) >= MAX_GET_STREAMS else self.open_stream()
        self._get_streams.append(stream)
        return stream

    def _take_oldest_stream(self, scopes: frozenset[str] | None) -> EventStream:
        """Return the oldest GET stream allowed for these scopes, or replace the oldest by a new one."""
        for place, stream in enumerate(self._get_streams):
            if has_scopes(scopes, stream.wanted):
                return self._get_streams.pop(place)
        self.forget(self._get_streams[0])
        return self.open_stream()

    def is_get_stream(self, stream: EventStream) -> bool:
        return stream in self._get_streams

    def parse_stream(self, name: str) -> StreamName | None:
        """Return the parts of a stream's name, or None if this session's streams never had it."""
        return self._names.parse(name)

    def take_copy(self, name: str, number: int, wanted: frozenset[str]) -> EventStream:
        """Return a stream with events of another replica after number `number`; reading it needs the scopes `wanted`.
        Its reader is about to attach."""
        stream = self.add_stream(name, wanted)
        stream.begin_after(number)
        stream.attach(PENDING_READER)
        return stream

    def add_stream(self, name: str, wanted: frozenset[str]) -> EventStream:
        """Return a new stream with the name of an earlier one, of another process."""
        return self._keep_stream(self._create_stream(name, wanted))

    def find_event(self, id: str, scopes: frozenset[str] | None = None) -> tuple[EventStream, int] | None:
        """Return the stream and number of an event id, or None if there is no such event any more. For unrequested
        messages, a caller without the scopes gets a stream of new messages only."""
        parsed = parse_event_id(id)
        if parsed is None:
            return None
        name, number = parsed
        stream = self.streams.get(name)
        if stream is None:
            return self._find_earlier_event(name, number, id.endswith(ANSWER_MARK), scopes)
        if stream in self._get_streams and not has_scopes(scopes, stream.wanted):
            stream = self.open_get_stream(scopes)
            return stream, stream.sent
        return (stream, number) if number <= stream.last else None

    @property
    def has_listener(self) -> bool:
        """Whether a GET stream has a reader."""
        return any(stream.reader is not None for stream in self._get_streams)

    @property
    def can_ask(self) -> bool:
        return self.backend.can_ask

    @property
    def is_full(self) -> bool:
        """Whether the GET stream that the next message goes to is full."""
        read = [stream for stream in self._get_streams if stream.reader is not None]
        return bool(read) and read[-1].is_full

    def disconnect_get_readers(self) -> None:
        """Disconnect the readers of GET streams, which stay for a while."""
        for stream in self._get_streams:
            if stream.reader is not None:
                stream.release(stream.reader)

    def send(self, message: Outbound) -> None:
        """Send an unrequested message."""
        self.backend.send(message)

    def send_here(self, message: Outbound) -> None:
        """Send it on one GET stream of this process: the newest that has a reader."""
        for stream in reversed(self._get_streams):
            if stream.reader is not None:
                self._add(stream, message)
                return
        self._add(self.open_get_stream(), message)

    def _add(self, stream: EventStream, message: Outbound) -> None:
        """Send it on a GET stream, whose resumption then needs the client's current scopes."""
        stream.wanted |= self.session.scopes or NOTHING
        stream.send(message)

    def pause(self) -> None:
        """Do nothing: a GET stream has no end to wait for."""

    def end(self) -> None:
        """Cancel running work, and disconnect every reader."""
        self.is_ended = True
        for task in list(self.tasks):
            task.cancel()
        for stream in self.streams.values():
            stream.close()
        self.backend.note_end()

    def collect_undelivered(self) -> list[StoredEvent]:
        """Return the answers and unread messages for the next process. Running calls get an error."""
        for stream in list(self.streams.values()):
            named = self._names.parse(stream.id)
            if named is not None and named.request_ids is not None and not stream.ended and not stream.answered:
                stream.send(interrupted_answer(named.request_ids))
                stream.end()
        left, size = list[StoredEvent](), 0
        for message in (*self._unread_messages(), *self._undelivered_answers()):
            if size + len(message.data) <= MAX_UNDELIVERED:
                size += len(message.data)
                left.append(message)
        return left

    def _unread_messages(self) -> Iterator[StoredEvent]:
        number = 0
        for stream in self._get_streams:
            for data in stream.messages_after(stream.sent):
                number += 1
                yield StoredEvent("", number, data)

    def _undelivered_answers(self) -> Iterator[StoredEvent]:
        """Yield unsent answers first, then sent ones, the newest of each first."""
        answered = [stream for stream in reversed(self.streams.values()) if stream.answered]
        for stream in sorted(answered, key=lambda stream: stream.sent >= stream.answered):
            for data in stream.messages_after(stream.answered - 1)[:1]:
                yield StoredEvent(stream.id, stream.answered, data)

    def _find_earlier_event(
        self, name: str, number: int, is_answer: bool, scopes: frozenset[str] | None
    ) -> tuple[EventStream, int] | None:
        """Return the stream of an earlier process's event; its events that were not saved are lost."""
        named = self._names.parse(name)
        if named is None or not named.is_known or named.process == self._names.process:
            return None
        if named.request_ids is None:
            stream = self.open_get_stream(scopes)
            return stream, stream.sent
        stream = self._create_stream(name)
        stream.begin_after(number)
        if is_answer:
            stream.close()
        else:
            stream.send(interrupted_answer(named.request_ids))
            self._keep_stream(stream).end()
        return stream, number

    def forget(self, stream: EventStream) -> None:
        """End a stream and drop its events: it can't be resumed any more."""
        stream.close()
        self.streams.pop(stream.id, None)
        self._get_streams = [other for other in self._get_streams if other is not stream]

    def _create_stream(self, name: str, wanted: frozenset[str] = NOTHING) -> EventStream:
        claim = self._events.claim(self.principal.name) if self._events is not None else None
        stream = EventStream(name, numbered=True, wanted=wanted, claim=claim, forget=self.forget)
        self.backend.note_stream(stream)
        return stream

    def _keep_stream(self, stream: EventStream) -> EventStream:
        if self.is_ended:
            stream.close()
            return stream
        self._make_room()
        self.streams[stream.id] = stream
        return stream

    def _make_room(self) -> None:
        """Drop streams without a reader, the oldest finished ones first."""
        finished = [stream for stream in self.streams.values() if stream.ended and stream.reader is None]
        kept = sum(stream.size for stream in finished)
        for stream in finished:
            if len(self.streams) < MAX_STREAMS and kept <= MAX_FINISHED_SIZE:
                return
            kept -= stream.size
            self.forget(stream)
        for stream in list(self.streams.values()):
            if len(self.streams) < MAX_STREAMS:
                return
            if stream.reader is None:
                self.forget(stream)


def parse_event_id(id: str) -> tuple[str, int] | None:
    """Return the stream's name and the event's number, or None for what is no id of an event."""
    name, _, digits = id.rpartition("-")
    digits = digits.removesuffix(ANSWER_MARK)
    return (name, int(digits)) if digits.isascii() and digits.isdigit() and len(digits) < 10 else None


def union_scopes(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """Return the scopes of both; None means all scopes."""
    return None if one is None or other is None else one | other
