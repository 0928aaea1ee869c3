"""Continue streams of other replicas: ask their producer for events, or take them from Redis if it is dead.

A reader that returns here names the stream, whose name begins with its producer. The producer answers as soon as it has
events, so they arrive one after the other and none is missed. A stream that its dead producer did not answer is
answered here: the call is made again if it may be, else the answer says that its outcome is unknown.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from toolgate.server.base.bus.bus import Bus, BusUnreachableError, NoReplyError, UndeliveredError
from toolgate.server.base.principals.principal import Principal
from toolgate.server.base.principals.scopes import has_scopes
from toolgate.server.features.replicas.sessions.redis_backend import start_work
from toolgate.server.features.replicas.sessions.stream_entries import StreamEvent, parse_entries, read_event
from toolgate.server.protocol.dispatcher import Dispatcher
from toolgate.server.protocol.interruption import interrupted_answer
from toolgate.server.protocol.messages import Inbound, Request, decode, encode
from toolgate.transports.http.requests.post import PostReply
from toolgate.transports.http.sessions.event_stream import EventStream
from toolgate.transports.http.sessions.session import HttpSession, parse_event_id

KIND = "stream"
WAIT = 3.0  # seconds that a producer waits for an event before it answers without one
REPLY = 5.0  # seconds for its answer
PAUSE = 0.25  # seconds until a producer that may be dead is asked again
GIVE_UP = 10.0  # seconds: longer than it takes to find a replica dead
BUSY = 1.0  # seconds between two questions to a producer that has too many to wait
MAX_POLLS = 500  # questions that wait at once: half of what a replica's mail handles
MAX_REPLY = 4 * 2**20  # bytes of events in one answer, besides the first
MAX_REQUEST = 64 * 1024  # bytes of a request that is kept to be made again

log = logging.getLogger("toolgate.http")


class _Poll(msgspec.Struct, array_like=True, frozen=True):
    """A question for the events of a stream after number `after`. `moves`: the stream ends at its producer."""

    session: str
    stream: str
    after: int
    moves: bool


class _News(msgspec.Struct, array_like=True, frozen=True):
    """The producer's answer. `is_closing`: it ends, and writes what it still has."""

    is_known: bool
    has_ended: bool = False
    wanted: tuple[str, ...] = ()
    events: list[StreamEvent] = []
    is_closing: bool = False


_decode_poll = msgspec.msgpack.Decoder(_Poll).decode
_decode_news = msgspec.msgpack.Decoder(_News).decode
_UNKNOWN, _CLOSING = _News(is_known=False), _News(is_known=False, is_closing=True)


class ResumedStreams:
    """The streams that move between this replica and others.

    - `find(key)` returns the open session with this digest, or None.
    - `may_repeat(request)` returns whether a request may be made again.
    """

    def __init__(
        self,
        bus: Bus,
        find: Callable[[str], HttpSession | None],
        dispatcher: Dispatcher,
        may_repeat: Callable[[Request], bool],
    ) -> None:
        self._bus = bus
        self._find = find
        self._dispatcher = dispatcher
        self._may_repeat = may_repeat
        self._polls = 0
        self.is_closing = False  # other replicas wait until this one has ended
        bus.mail.receive(KIND, self._answer)

    def keep_request(self, session: HttpSession, stream: EventStream, message: Inbound | list[Inbound]) -> None:
        """Keep a request that another replica may make again if this one dies."""
        if not isinstance(message, Request) or not self._may_repeat(message):
            return
        data = encode(message)
        if len(data) <= MAX_REQUEST:
            kept = msgspec.msgpack.encode(StreamEvent(1, data, False, tuple(sorted(stream.wanted))))
            self._bus.streams.append(session.record_key, _name_request(stream.id), 1, kept)

    async def resume(self, session: HttpSession, id: str, principal: Principal) -> tuple[EventStream, int] | None:
        """Return the stream and number of an event id, or None if there is no such event any more. Raises
        BusUnreachableError."""
        parsed = parse_event_id(id)
        named = session.parse_stream(parsed[0]) if parsed is not None else None
        if parsed is None or named is None or not named.is_known:
            return session.find_event(id, principal.scopes)
        name, number = parsed
        is_own, held = named.process == session.replica, session.streams.get(name)
        if held is not None and (is_own or not held.has_gap(number)):
            return session.find_event(id, principal.scopes)
        if held is not None:
            session.forget(held)
        is_get = named.request_ids is None
        poll = _Poll(session.record_key, name, number, is_get)
        news = _UNKNOWN if is_own else await self._ask(named.process, poll)
        events = news.events if news is not None and news.is_known else await self._read(session, name, number)
        if is_get:
            return self._take_messages(session, events, principal)
        wanted = frozenset(scope for event in events for scope in event.wanted)
        stream = session.take_copy(name, number, wanted.union(news.wanted if news is not None else ()))
        _copy(stream, events)
        if news is None:
            await self._finish(session, stream, principal)
        elif not news.is_known and not stream.answered:
            session.forget(stream)
            return None
        elif stream.answered or news.has_ended:
            stream.end()
        elif has_scopes(principal.scopes, stream.wanted):  # else it is not read
            start_work(session, self._follow(session, stream, named.process))
        return stream, number

    def _take_messages(
        self, session: HttpSession, events: list[StreamEvent], principal: Principal
    ) -> tuple[EventStream, int]:
        """Return a GET stream with unrequested messages that the reader did not get elsewhere."""
        stream = session.open_get_stream(principal.scopes)
        before = stream.sent
        for event in events:
            if has_scopes(principal.scopes, frozenset(event.wanted)):
                stream.wanted |= frozenset(event.wanted)
                stream.send(msgspec.Raw(event.data))
        return stream, before

    async def _follow(self, session: HttpSession, stream: EventStream, producer: str) -> None:
        """Copy the producer's events to a stream as long as it has a reader."""
        while stream.reader is not None and not stream.ended:
            try:
                news = await self._ask(producer, _Poll(session.record_key, stream.id, stream.last, False))
                if news is None or not news.is_known:
                    _copy(stream, await self._read(session, stream.id, stream.last))
                    await self._finish(session, stream, session.principal)
                    return
            except BusUnreachableError as error:
                log.warning("a stream of another replica waits: %s", error)
                await asyncio.sleep(BUSY)
                continue
            _copy(stream, news.events)
            if news.has_ended:
                stream.end()
            elif not news.events and self._polls >= MAX_POLLS:
                await asyncio.sleep(BUSY)
        if not stream.ended:
            session.forget(stream)

    async def _finish(self, session: HttpSession, stream: EventStream, principal: Principal) -> None:
        """Answer a stream that its dead producer may not have answered. Raises BusUnreachableError."""
        named = session.parse_stream(stream.id)
        if not stream.answered and named is not None and named.request_ids is not None:
            request = await self._find_request(session, stream, principal)
            if request is not None:
                log.info("a call of a replica that died is made again")
                start_work(session, self._repeat(session, request, stream))
                return
            stream.send(interrupted_answer(named.request_ids))
        stream.end()

    async def _repeat(self, session: HttpSession, request: Request, stream: EventStream) -> None:
        reply = PostReply(lambda: stream, session)
        reply.open()
        try:
            await self._dispatcher.handle_message(request, session.session, reply)
        finally:
            reply.finish()

    async def _find_request(self, session: HttpSession, stream: EventStream, principal: Principal) -> Request | None:
        """Return the request of a stream, if it may be made again for this caller."""
        for kept in await self._read(session, _name_request(stream.id), 0):
            stream.wanted |= frozenset(kept.wanted)
            message = decode(kept.data)
            if not isinstance(message, Request) or message.id in session.session.in_flight:
                continue
            if has_scopes(principal.scopes, stream.wanted) and self._may_repeat(message):
                return message
        return None

    async def _ask(self, producer: str, poll: _Poll) -> _News | None:
        """Return the producer's answer, or None if it is dead. Raises BusUnreachableError."""
        data = msgspec.msgpack.encode(poll)
        give_up = asyncio.get_running_loop().time() + GIVE_UP
        while True:
            try:
                news = _decode_news(await self._bus.mail.send(producer, KIND, data, REPLY))
                if not news.is_closing:
                    return news
            except (UndeliveredError, NoReplyError):
                if not await self._bus.replica.is_alive(producer):
                    return None
            if asyncio.get_running_loop().time() > give_up:
                raise BusUnreachableError("the server that has this stream does not answer")
            await asyncio.sleep(PAUSE)

    async def _read(self, session: HttpSession, name: str, after: int) -> list[StreamEvent]:
        try:
            return parse_entries(await self._bus.streams.read(session.record_key, name, after))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return []

    async def _answer(self, data: bytes) -> bytes:
        """Answer another replica with the events of a stream of this one."""
        return msgspec.msgpack.encode(await self._collect(_decode_poll(data)))

    async def _collect(self, poll: _Poll) -> _News:
        session = self._find(poll.session)
        stream = session.streams.get(poll.stream) if session is not None else None
        if session is None or stream is None or poll.after > stream.last:
            return _CLOSING if self.is_closing else _UNKNOWN
        if not poll.moves and not stream.ended and not stream.messages_after(poll.after) and self._polls < MAX_POLLS:
            self._polls += 1
            try:
                await _wait_events(stream, poll.after)
            finally:
                self._polls -= 1
        begin = stream.last - len(stream.messages_after(poll.after)) + 1
        events: list[StreamEvent] = []
        size = 0
        for number, message in enumerate(stream.messages_after(poll.after), begin):
            size += len(message)
            if events and size > MAX_REPLY:
                break
            events.append(read_event(stream, number, message))
        is_all = not events or events[-1].number == stream.last
        if poll.moves and session.is_get_stream(stream):
            session.forget(stream)
        elif events:
            stream.sent = max(stream.sent, events[-1].number)
        return _News(True, stream.ended and is_all, tuple(sorted(stream.wanted)), events)


async def _wait_events(stream: EventStream, after: int) -> None:
    """Wait until a stream has events after a number, has ended or has another reader, for at most WAIT seconds."""
    reader = object()
    stream.attach(reader)  # a reader that has not noticed that its connection is lost leaves
    try:
        async with asyncio.timeout(WAIT):
            while stream.reader is reader and not stream.ended and not stream.messages_after(after):
                stream.news.clear()
                await stream.news.wait()
    except TimeoutError:
        return
    finally:
        stream.release(reader)


def _copy(stream: EventStream, events: list[StreamEvent]) -> None:
    for event in events:
        stream.copy(event.number, event.data, is_answer=event.is_answer)


def _name_request(stream: str) -> str:
    return f"request:{stream}"
