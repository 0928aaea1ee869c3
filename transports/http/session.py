"""Hold a session of an HTTP client: its streams, what is kept of them for resumption, and what outlives the process."""

import asyncio
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import msgspec

from toolgate.server.auth.scopes import NOTHING, has_scopes, usable_scopes
from toolgate.server.budget import Budget
from toolgate.server.principal import GrantKey, Principal
from toolgate.server.protocol.messages import Outbound
from toolgate.server.protocol.revisions import WITH_SESSION
from toolgate.server.protocol.session import Session
from toolgate.server.state.sessions import ResumedSession, SessionDetails, SessionRecords, StoredEvent, encode_details
from toolgate.server.state.store import StateError
from toolgate.transports.http.event_ids import RequestIds, StreamNames
from toolgate.transports.http.event_stream import ANSWER_MARK, EventStream
from toolgate.transports.http.post import interrupted_answer

PENDING_READER = object()  # a reader that is not there yet
MAX_GET_STREAMS = 8  # streams of GET requests: the specification allows several, and programs open one or two
MAX_STREAMS = 64  # kept for resumption, of one session; the oldest finished ones go first
MAX_RIGHTS = 8  # grants of one session: a client that asks for more permissions gets a new one each time
MAX_FINISHED_SIZE = 8 * 2**20  # bytes of finished streams kept for resumption, of one session
MAX_UNDELIVERED = 2 * 2**20  # bytes of answers that one session leaves to the next process; the oldest stay behind

log = logging.getLogger("toolgate.http")


class HttpSession:
    """A session and its streams. It is also the session's channel: what no request asked for goes to an open GET
    stream, and waits for one where there is none. `records` is where it is remembered; `taken` is what an earlier
    process knew of it, and `key` its id then. `events` bounds what the streams of one principal hold, in bytes."""

    def __init__(
        self,
        principal: Principal,
        transport: str = "",
        records: SessionRecords | None = None,
        events: Budget | None = None,
        *,
        key: str = "",
        taken: ResumedSession | None = None,
    ) -> None:
        self.principal = principal
        self.rights: set[GrantKey] = {principal.grant_key}  # of all tokens that used it
        self._scopes = usable_scopes(principal.scopes)  # of any of them
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
        )
        self.streams: OrderedDict[str, EventStream] = OrderedDict()
        self.began = time.time()
        self.last_used = time.monotonic()
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_recorded = taken is not None
        self._records = records
        self._events = events
        self._saved_data: bytes | None = None
        self._is_ended = False
        self._get_streams: list[EventStream] = []  # of GET requests, oldest first
        self._names = StreamNames(self.id)
        if records is not None:
            self.session.place.save = self._save
            if taken is not None:
                self._restore(taken, records.workspace)

    @property
    def id(self) -> str:
        return self.session.key

    @property
    def record_key(self) -> str:
        """What it is called where it is remembered."""
        return self.session.place.key

    @property
    def owner(self) -> str:
        return self.session.owner

    @property
    def is_busy(self) -> bool:
        """Whether something runs or someone listens: such a session does not expire."""
        return bool(self.tasks) or any(stream.reader is not None for stream in self.streams.values())

    def use(self, principal: Principal) -> bool:
        """Go on with another token of the owner, and with what that may do. False: tokens of too many grants did.

        Revoking any of these grants ends the session, whichever of its tokens came last.
        """
        if principal.grant_key not in self.rights and len(self.rights) >= MAX_RIGHTS:
            return False
        scopes = _union_scopes(self._scopes, usable_scopes(principal.scopes))
        is_new = principal.grant_key not in self.rights or scopes != self._scopes
        self.principal, self._scopes = principal, scopes
        self.rights.add(principal.grant_key)
        self.session.right = principal.grant_key
        self.session.scopes = usable_scopes(principal.scopes)
        self.session.granted = usable_scopes(principal.grant_scopes)
        if is_new and self.is_recorded:
            saving = asyncio.get_running_loop().create_task(self._save())
            self.tasks.add(saving)
            saving.add_done_callback(self.tasks.discard)
        return True

    def open_stream(
        self, request_ids: RequestIds | None = None, required_scopes: frozenset[str] = NOTHING
    ) -> EventStream:
        """A new stream, kept for resumption. `asked` is what is answered on it, `wanted` the scopes that took."""
        return self._keep_stream(self._create_stream(self._names.next(request_ids), required_scopes))

    def open_post_stream(
        self, request_ids: RequestIds | None = None, required_scopes: frozenset[str] = NOTHING
    ) -> EventStream:
        """A new stream whose reader is on its way: many may begin at the same moment, and none makes room for them."""
        made = self.open_stream(request_ids, required_scopes)
        made.attach(PENDING_READER)
        return made

    def open_get_stream(self, scopes: frozenset[str] | None = None) -> EventStream:
        """Return the stream of a GET request with these scopes: one that waits for such a reader, or a new one.
        Where there are enough of them, the oldest: its reader is sent away, and what it has not got goes to the next.
        """
        for stream in self._get_streams:
            if stream.reader is None and not stream.ended and has_scopes(scopes, stream.wanted):
                return stream
        stream = (
            self._take_oldest_get_stream(scopes) if len(self._get_streams) >= MAX_GET_STREAMS else self.open_stream()
        )
        self._get_streams.append(stream)
        return stream

    def _take_oldest_get_stream(self, scopes: frozenset[str] | None) -> EventStream:
        """The oldest stream of a GET request that may be told to whoever has these scopes; a new one in its place where
        there is none."""
        for place, stream in enumerate(self._get_streams):
            if has_scopes(scopes, stream.wanted):
                return self._get_streams.pop(place)
        self.forget(self._get_streams[0])
        return self.open_stream()

    def find_event(self, id: str, scopes: frozenset[str] | None = None) -> tuple[EventStream, int] | None:
        """The stream and the number that an event id names; None where there is no such event, or no longer. Of what no
        request asked for, whoever lacks scopes for it gets what comes from now on."""
        name, _, digits = id.rpartition("-")
        digits = digits.removesuffix(ANSWER_MARK)
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            return None
        number, stream = int(digits), self.streams.get(name)
        if stream is None:
            return self._find_earlier_event(name, number, id.endswith(ANSWER_MARK), scopes)
        if stream in self._get_streams and not has_scopes(scopes, stream.wanted):
            stream = self.open_get_stream(scopes)
            return stream, stream.sent
        return (stream, number) if number <= stream.last else None

    @property
    def can_ask(self) -> bool:
        """Whether a GET stream has a reader."""
        return any(stream.reader is not None for stream in self._get_streams)

    def send(self, message: Outbound) -> None:
        """Send what no request asked for: on the newest GET stream that has a reader, never on two."""
        for stream in reversed(self._get_streams):
            if stream.reader is not None:
                self._add(stream, message)
                return
        self._add(self.open_get_stream(), message)

    def _add(self, stream: EventStream, message: Outbound) -> None:
        """Send it on a GET stream: resuming that stream takes the scopes that the client has now."""
        stream.wanted |= self.session.scopes or NOTHING
        stream.send(message)

    def pause(self) -> None:
        """What no request asked for comes whenever it comes."""

    def end(self) -> None:
        """Call off what runs, and send every reader away."""
        self._is_ended = True
        for task in list(self.tasks):
            task.cancel()
        for stream in self.streams.values():
            stream.close()

    def collect_undelivered(self) -> list[StoredEvent]:
        """What the next process has to tell the client: answers, and what nobody has read yet. Calls that are still
        under way get an error."""
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
        """Those that were not sent yet come first, and of either kind the newest."""
        answered = [stream for stream in reversed(self.streams.values()) if stream.answered]
        for stream in sorted(answered, key=lambda stream: stream.sent >= stream.answered):
            for data in stream.messages_after(stream.answered - 1)[:1]:
                yield StoredEvent(stream.id, stream.answered, data)

    def _find_earlier_event(
        self, name: str, number: int, is_answer: bool, scopes: frozenset[str] | None
    ) -> tuple[EventStream, int] | None:
        """The same, of a stream that an earlier process had: what was not left of it is lost."""
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
        """End a stream, with all that is in it: it can't be resumed any more."""
        stream.close()
        self.streams.pop(stream.id, None)
        self._get_streams = [other for other in self._get_streams if other is not stream]

    def _create_stream(self, name: str, wanted: frozenset[str] = NOTHING) -> EventStream:
        claim = self._events.claim(self.principal.name) if self._events is not None else None
        return EventStream(name, numbered=True, wanted=wanted, claim=claim, forget=self.forget)

    def _keep_stream(self, stream: EventStream) -> EventStream:
        if self._is_ended:
            stream.close()
            return stream
        self._make_room()
        self.streams[stream.id] = stream
        return stream

    def _make_room(self) -> None:
        """Forget streams without a reader, oldest first: finished ones, and if that is not enough others."""
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

    async def _save(self) -> None:
        """Write down what is new. Where that can't be done the session ends with the process."""
        records, cwd = self._records, self.session.place.cwd
        if records is None or self._is_ended or self.session.revision is None:
            return
        data = encode_details(self._details(records.workspace))
        if data is None or data == self._saved_data:
            self.session.place.saved_cwd = cwd  # there is nothing to write until it moves on
            return
        is_new, self.is_recorded = not self.is_recorded, True
        try:
            if is_new:
                whose = self.principal
                await records.add(self.record_key, (whose.issuer, whose.subject, whose.client), data)
            else:
                await records.update(self.record_key, data)
        except StateError as error:
            self.is_recorded = not is_new
            log.warning("a session is not saved, and does not outlive this process as it is: %s", error)
        else:
            self._saved_data, self.session.place.saved_cwd = data, cwd

    def _details(self, workspace: str) -> SessionDetails:
        session = self.session
        assert session.revision is not None
        return SessionDetails(
            name=session.client,
            revision=session.revision.name,
            capabilities=session.capabilities,
            log_level=session.log_level,
            subscribed=list(session.subscribed),
            scopes=None if self._scopes is None else sorted(self._scopes),
            grants=sorted(right for right in self.rights if isinstance(right, str)),
            workspace=workspace,
            cwd=None if session.place.cwd is None else os.fsencode(session.place.cwd),
            plan=session.place.plan,
        )

    def _restore(self, taken: ResumedSession, workspace: str) -> None:
        session, details = self.session, taken.details
        session.revision = WITH_SESSION[details.revision]
        session.capabilities = details.capabilities
        session.log_level = details.log_level
        session.client = details.name
        self.rights.update(details.grants)
        if details.cwd is not None and details.workspace == workspace:
            session.place.cwd = session.place.saved_cwd = Path(os.fsdecode(details.cwd))
        session.place.plan = details.plan
        self.began = taken.began_at
        wanted = frozenset(details.scopes or ())
        self._scopes = _union_scopes(self._scopes, wanted)
        for message in taken.messages:
            if message.stream:
                stream = self._keep_stream(self._create_stream(message.stream, wanted))
                stream.restore(message.number, message.data)
            else:
                stream = self.open_get_stream()
                stream.wanted |= wanted
                stream.send(msgspec.Raw(message.data))


def _union_scopes(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """All scopes of both; None is everything."""
    return None if one is None or other is None else one | other
