"""A session of an HTTP client: its streams, what is kept of them for a client that comes back, and what of it outlives
the process.

Knows streams; knows nothing of requests, headers or tools.
"""

import asyncio
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import msgspec

from toolgate.server.auth.scopes import NOTHING, covers, reach
from toolgate.server.budget import Budget
from toolgate.server.principal import Principal, Right
from toolgate.server.protocol.messages import Outbound
from toolgate.server.protocol.revisions import WITH_SESSION
from toolgate.server.protocol.session import Session
from toolgate.server.state.sessions import Details, Message, SessionRecords, Taken, spelled
from toolgate.server.state.store import StateError
from toolgate.transports.http.event_ids import Asked, StreamNames
from toolgate.transports.http.event_stream import ANSWERED, Stream
from toolgate.transports.http.post_reply import lost

COMING = object()  # a reader that is not there yet
MAX_STANDING = 8  # streams of GET requests: the specification allows several, and programs open one or two
MAX_STREAMS = 64  # kept for resumption, of one session; the oldest finished ones go first
MAX_RIGHTS = 8  # grants of one session: a client that asks for more permissions gets a new one each time
MAX_KEPT = 8 * 2**20  # bytes of finished streams kept for resumption, of one session
MAX_LEFT = 2 * 2**20  # bytes of answers that one session leaves to the next process; the oldest stay behind

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
        key: str | None = None,
        taken: Taken | None = None,
    ) -> None:
        self.principal = principal
        self.rights: set[Right] = {principal.right}  # of all tokens that used it
        self._scopes = reach(principal.scopes)  # of any of them
        self.session = Session(
            principal.name,
            self,
            owner=principal.owner,
            right=principal.right,
            scopes=reach(principal.scopes),
            granted=reach(principal.granted),
            client=principal.client,
            transport=transport,
            key=key,
        )
        self.streams: OrderedDict[str, Stream] = OrderedDict()
        self.since = time.time()
        self.seen = time.monotonic()
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_recorded = taken is not None
        self._records = records
        self._events = events
        self._written: bytes | None = None
        self._is_ended = False
        self._standing: list[Stream] = []  # of GET requests, oldest first
        self._names = StreamNames(self.id)
        if records is not None:
            self.session.place.save = self._save
            if taken is not None:
                self._restore(taken, records.workspace)

    @property
    def id(self) -> str:
        return self.session.key

    @property
    def record(self) -> str:
        """What it is called where it is remembered."""
        return self.session.place.key

    @property
    def owner(self) -> str:
        return self.session.owner

    @property
    def busy(self) -> bool:
        """Whether something runs or someone listens: such a session does not expire."""
        return bool(self.tasks) or any(stream.reader is not None for stream in self.streams.values())

    def use(self, principal: Principal) -> bool:
        """Go on with another token of the owner, and with what that may do. False: tokens of too many grants did.

        Each of these grants ends the session: whoever takes one back is not asked which of its tokens came last.
        """
        if principal.right not in self.rights and len(self.rights) >= MAX_RIGHTS:
            return False
        scopes = _either(self._scopes, reach(principal.scopes))
        is_new = principal.right not in self.rights or scopes != self._scopes
        self.principal, self._scopes = principal, scopes
        self.rights.add(principal.right)
        self.session.right = principal.right
        self.session.scopes = reach(principal.scopes)
        self.session.granted = reach(principal.granted)
        if is_new and self.is_recorded:
            saving = asyncio.get_running_loop().create_task(self._save())
            self.tasks.add(saving)
            saving.add_done_callback(self.tasks.discard)
        return True

    def stream(self, asked: Asked | None = None, wanted: frozenset[str] = NOTHING) -> Stream:
        """A new stream, kept for resumption. `asked` is what is answered on it, `wanted` the scopes that took."""
        return self._keep(self._made(self._names.next(asked), wanted))

    def awaited(self, asked: Asked | None = None, wanted: frozenset[str] = NOTHING) -> Stream:
        """A new stream whose reader is on its way: many may begin at the same moment, and none makes room for them."""
        made = self.stream(asked, wanted)
        made.attach(COMING)
        return made

    def standing(self, scopes: frozenset[str] | None = None) -> Stream:
        """The stream of a GET request by whoever has these scopes: one that waits for such a reader, or a new one.
        Where there are enough of them, the oldest: its reader is sent away, and what it has not got goes to the next.
        """
        for stream in self._standing:
            if stream.reader is None and not stream.ended and covers(scopes, stream.wanted):
                return stream
        stream = self._oldest(scopes) if len(self._standing) >= MAX_STANDING else self.stream()
        self._standing.append(stream)
        return stream

    def _oldest(self, scopes: frozenset[str] | None) -> Stream:
        """The oldest stream of a GET request that may be told to whoever has these scopes; a new one in its place where
        there is none."""
        for place, stream in enumerate(self._standing):
            if covers(scopes, stream.wanted):
                return self._standing.pop(place)
        self.forget(self._standing[0])
        return self.stream()

    def event(self, id: str, scopes: frozenset[str] | None = None) -> tuple[Stream, int] | None:
        """The stream and the number that an event id names; None where there is no such event, or no longer. Of what no
        request asked for, whoever lacks scopes for it gets what comes from now on."""
        name, _, digits = id.rpartition("-")
        digits = digits.removesuffix(ANSWERED)
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            return None
        number, stream = int(digits), self.streams.get(name)
        if stream is None:
            return self._event_of_earlier(name, number, id.endswith(ANSWERED), scopes)
        if stream in self._standing and not covers(scopes, stream.wanted):
            stream = self.standing(scopes)
            return stream, stream.sent
        return (stream, number) if number <= stream.last else None

    @property
    def can_ask(self) -> bool:
        """Whether somebody reads what no request asked for."""
        return any(stream.reader is not None for stream in self._standing)

    def send(self, message: Outbound) -> None:
        """Take what no request asked for: on the newest stream that somebody reads, never on two."""
        for stream in reversed(self._standing):
            if stream.reader is not None:
                self._add(stream, message)
                return
        self._add(self.standing(), message)

    def _add(self, stream: Stream, message: Outbound) -> None:
        """Send it on a stream of a GET request: who is told it again has to have what the client has now."""
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

    def leave(self) -> list[Message]:
        """What the next process has to tell the client: answers, and what nobody has read yet. Calls that are still
        under way get an error."""
        for stream in list(self.streams.values()):
            named = self._names.read(stream.id)
            if named is not None and named.asked is not None and not stream.ended and not stream.answered:
                stream.send(lost(named.asked))
                stream.end()
        left, size = list[Message](), 0
        for message in (*self._unread(), *self._answers()):
            if size + len(message.data) <= MAX_LEFT:
                size += len(message.data)
                left.append(message)
        return left

    def _unread(self) -> Iterator[Message]:
        number = 0
        for stream in self._standing:
            for data in stream.bare_after(stream.sent):
                number += 1
                yield Message("", number, data)

    def _answers(self) -> Iterator[Message]:
        """Those that were not sent yet come first, and of either kind the newest."""
        answered = [stream for stream in reversed(self.streams.values()) if stream.answered]
        for stream in sorted(answered, key=lambda stream: stream.sent >= stream.answered):
            for data in stream.bare_after(stream.answered - 1)[:1]:
                yield Message(stream.id, stream.answered, data)

    def _event_of_earlier(
        self, name: str, number: int, is_answer: bool, scopes: frozenset[str] | None
    ) -> tuple[Stream, int] | None:
        """The same, of a stream that an earlier process had: what was not left of it is lost."""
        named = self._names.read(name)
        if named is None or not named.is_known or named.life == self._names.life:
            return None
        if named.asked is None:
            stream = self.standing(scopes)
            return stream, stream.sent
        stream = self._made(name)
        stream.begin_after(number)
        if is_answer:
            stream.close()
        else:
            stream.send(lost(named.asked))
            self._keep(stream).end()
        return stream, number

    def forget(self, stream: Stream) -> None:
        """Have it end, with all that is in it: nobody can come back to it."""
        stream.close()
        self.streams.pop(stream.id, None)
        self._standing = [other for other in self._standing if other is not stream]

    def _made(self, name: str, wanted: frozenset[str] = NOTHING) -> Stream:
        claim = self._events.claim(self.principal.name) if self._events is not None else None
        return Stream(name, numbered=True, wanted=wanted, claim=claim, forget=self.forget)

    def _keep(self, stream: Stream) -> Stream:
        if self._is_ended:
            stream.close()
            return stream
        self._make_room()
        self.streams[stream.id] = stream
        return stream

    def _make_room(self) -> None:
        """Forget streams nobody reads, oldest first: finished ones, and if that is not enough others."""
        finished = [stream for stream in self.streams.values() if stream.ended and stream.reader is None]
        kept = sum(stream.size for stream in finished)
        for stream in finished:
            if len(self.streams) < MAX_STREAMS and kept <= MAX_KEPT:
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
        data = spelled(self._details(records.workspace))
        if data is None or data == self._written:
            self.session.place.saved = cwd  # there is nothing to write until it moves on
            return
        is_new, self.is_recorded = not self.is_recorded, True
        try:
            if is_new:
                whose = self.principal
                await records.put(self.record, (whose.issuer, whose.subject, whose.client), data)
            else:
                await records.change(self.record, data)
        except StateError as error:
            self.is_recorded = not is_new
            log.warning("a session is not written down, and does not outlive this process as it is: %s", error)
        else:
            self._written, self.session.place.saved = data, cwd

    def _details(self, workspace: str) -> Details:
        session = self.session
        assert session.revision is not None
        return Details(
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

    def _restore(self, taken: Taken, workspace: str) -> None:
        session, details = self.session, taken.details
        session.revision = WITH_SESSION[details.revision]
        session.capabilities = details.capabilities
        session.log_level = details.log_level
        session.client = details.name
        self.rights.update(details.grants)
        if details.cwd is not None and details.workspace == workspace:
            session.place.cwd = session.place.saved = Path(os.fsdecode(details.cwd))
        session.place.plan = details.plan
        self.since = taken.began
        wanted = frozenset(details.scopes or ())
        self._scopes = _either(self._scopes, wanted)
        for message in taken.messages:
            if message.stream:
                stream = self._keep(self._made(message.stream, wanted))
                stream.restore(message.number, message.data)
            else:
                stream = self.standing()
                stream.wanted |= wanted
                stream.send(msgspec.Raw(message.data))


def _either(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """All scopes of both; None is everything."""
    return None if one is None or other is None else one | other
