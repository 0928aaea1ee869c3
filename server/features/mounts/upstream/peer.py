"""Send requests to a mounted server, and sort what comes back: answers, progress, questions and notices.

A request has an id and a progress token of its own: those of our clients never leave. What a wire can say of a message
is the request that it came for; over pipes it can't.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from toolgate.server.base.asyncio_tasks import DeadlineTimer
from toolgate.server.features.mounts.upstream import messages
from toolgate.server.features.mounts.upstream.errors import MountError, UpstreamFault, UpstreamRefusal
from toolgate.server.features.mounts.upstream.messages import Members, UpstreamMessage
from toolgate.server.protocol.message_ids import find_id

METHOD_NOT_FOUND = -32601
CANCELLED = "notifications/cancelled"
PROGRESS = "notifications/progress"
LOG = "notifications/message"
REQUEST = "toolgate/request"  # a member of `_meta`: which request of ours a message is about
MAX_NOTICES = 256  # and questions of one request that wait: a flood costs no more
MAX_NOTICE_BYTES = 4 * 2**20  # of these
MAX_REPLIES = 256  # that wait to be sent: a server that asks must take the answers
SEND_WITHIN = 30.0  # seconds for a message to be taken
MAX_RUBBISH = 1_000  # messages that can't be read, of one conversation: it is ended then
UNASKED = UpstreamFault("BAD_MESSAGE", "it goes on sending answers that nobody asked for")

log = logging.getLogger("toolgate.mounts")


class Question(msgspec.Struct, frozen=True):
    """A request of the mounted server to a client: "elicitation/create", "sampling/createMessage" or "roots/list"."""

    id: Any
    method: str
    params: dict[str, Any]


class MountNotice(msgspec.Struct, frozen=True):
    """What the mounted server tells of a request meanwhile: progress, or a line of its log."""

    method: str
    params: dict[str, Any]


class FlightRequest(msgspec.Struct, frozen=True):
    """A request of a program of ours for the request that it names; `params` as they came."""

    id: Any
    method: str
    params: Members


class Flight:
    """One request under way. `events` brings notices and questions, and last its result or an error. `can_ask` names
    the methods of questions that its client can answer. `is_call`: somebody waits for it."""

    def __init__(self, can_ask: frozenset[str] = frozenset(), *, is_call: bool = True) -> None:
        self.id = 0
        self.can_ask = can_ask
        self.is_call = is_call
        self.is_over = False
        self.events: asyncio.Queue[FlightEvent] = asyncio.Queue()
        self._waiting = 0  # bytes of notices and questions, since the last time that none waited

    def add(self, event: "MountNotice | Question", size: int) -> bool:
        """Take a notice or a question of so many bytes, unless too many wait. Return whether it was taken."""
        if self.events.empty():
            self._waiting = 0
        if self.events.qsize() >= MAX_NOTICES or self._waiting + size > MAX_NOTICE_BYTES:
            return False
        self._waiting += size
        self.events.put_nowait(event)
        return True

    def end(self, event: Members | UpstreamFault | UpstreamRefusal) -> None:
        if not self.is_over:
            self.is_over = True
            self.events.put_nowait(event)


FlightEvent = MountNotice | Question | FlightRequest | Members | UpstreamFault | UpstreamRefusal


class Wire(Protocol):
    """The way to a mounted server. It passes what comes to `UpstreamPeer.receive`, and says when it has broken."""

    async def send(self, message: bytes, flight: Flight | None = None, headers: Mapping[str, str] = {}) -> None:
        """Send a message. `flight`: the request that it is; `headers` are for HTTP. Raises MountError."""
        ...

    def abandon(self, flight: Flight) -> bool:
        """Stop waiting for an answer; return whether that alone tells the mounted server."""
        ...

    async def read_log(self) -> str:
        """Return the last that the mounted server said beside the protocol, or ""."""
        ...

    async def close(self) -> None: ...


class UpstreamPeer:
    """One conversation with a mounted server. `on_notice(method, params)` gets its other notifications.

    `names_requests`: it is a program of ours. Its messages may name the request that they are about (REQUEST), and that
    one gets them: requests of any method, too.
    """

    def __init__(self, on_notice: Callable[[str, dict[str, Any]], None], *, names_requests: bool = False) -> None:
        self.wire: Wire | None = None
        self.revision = ""  # what is spoken, once it is known
        self.failure: UpstreamFault | None = None  # why no more answers come
        self.rubbish = 0  # messages that could not be read, or answer nothing
        self.has_expired = False  # the mounted server has forgotten the session, as it may
        self.on_failure: Callable[[UpstreamFault], None] | None = None  # called once, when no more answers come
        self._on_notice = on_notice
        self._names_requests = names_requests
        self._last_id = 0
        self._flights: dict[int, Flight] = {}
        self._successors: dict[int, Flight] = {}  # requests that are answered → those that follow them
        self._replies: set[asyncio.Task[None]] = set()
        self._sending = DeadlineTimer(SEND_WITHIN)

    @property
    def is_idle(self) -> bool:
        return not any(flight.is_call for flight in self._flights.values())

    async def send(
        self,
        method: str,
        params: Mapping[str, Any],
        flight: Flight,
        headers: Mapping[str, str] = {},
        with_progress: bool = False,
    ) -> None:
        """Send a request; `flight` brings what comes of it. Raises MountError."""
        if self.failure is not None:  # nothing is sent
            raise MountError("SESSION_EXPIRED", self.failure.sentence)
        assert self.wire is not None
        self._last_id += 1
        flight.id = self._last_id
        if with_progress:
            params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": flight.id}}
        self._flights[flight.id] = flight
        try:
            await self._send(messages.encode_request(flight.id, method, params), flight, headers)
        except BaseException:
            self._forget(flight)
            raise

    async def request(
        self, method: str, params: Mapping[str, Any], timeout: float, headers: Mapping[str, str] = {}
    ) -> Members:
        """Return the result of a request that asks nothing. Raises MountError, UpstreamRefusedError, TimeoutError."""
        flight = Flight()
        try:
            async with asyncio.timeout(timeout):
                await self.send(method, params, flight, headers)
                event = await flight.events.get()
                while isinstance(event, MountNotice):
                    event = await flight.events.get()
        except (TimeoutError, asyncio.CancelledError):
            self.cancel(flight, "no longer needed")
            raise
        if isinstance(event, (UpstreamFault, UpstreamRefusal)):
            raise event.create_error()
        assert isinstance(event, dict)
        return event

    async def notify(self, method: str, params: Mapping[str, Any] = {}) -> None:
        """Send a notification. Raises MountError."""
        await self._send(messages.encode_notification(method, params))

    async def _send(self, message: bytes, flight: Flight | None = None, headers: Mapping[str, str] = {}) -> None:
        """Send a message. Raises MountError, also where it is not taken in time: a part of it may have been."""
        assert self.wire is not None
        try:
            await self._sending.limit(self.wire.send(message, flight, headers))
        except TimeoutError:
            fault = UpstreamFault("CONNECTION_LOST", f"it took no message within {SEND_WITHIN:g} s")
            self.fail(fault)
            raise fault.create_error() from None

    async def answer(self, question: Question, result: Any) -> None:
        """Answer a question of the mounted server. Raises MountError."""
        await self._send(messages.encode_answer(question.id, result))

    async def reply(self, id: Any, result: Any) -> None:
        """Answer a request that names one of ours. Raises MountError."""
        if self.wire is not None and self.failure is None:
            await self._send(messages.encode_answer(id, result))

    async def refuse(self, id: Any, code: int, text: str) -> None:
        """Answer a request of the mounted server with an error."""
        if self.wire is not None and self.failure is None:
            await self._send(messages.encode_refusal(id, code, text))

    def cancel(self, flight: Flight, reason: str) -> None:
        """Give a request up, and tell the mounted server."""
        if flight.id not in self._flights:
            return
        self._forget(flight)
        flight.is_over = True
        if self.wire is None or self.failure is not None or self.wire.abandon(flight):
            return
        self.tell(CANCELLED, {"requestId": flight.id, "reason": reason})

    def set_successor(self, before: Flight, after: Flight | None) -> None:
        """Have what still comes of a request that is answered soon, progress and questions, go to the one that follows
        it, until that is over. None: none follows."""
        self._successors.pop(before.id, None)
        if after is not None:
            self._successors[before.id] = after

    def receive(self, data: bytes, flight: Flight | None = None) -> None:
        """Take what the mounted server sent, if known for the request `flight`. Rubbish is counted and left out."""
        try:
            received = messages.decode_messages(data)
        except MountError as error:
            id = find_id(data)
            unread = self._flights.get(id) if type(id) is int else None
            if unread is not None:
                self.fail(error.fault, unread)
            self._count_rubbish(1, error.fault)
            return
        for message in received:
            self._sort(message, flight)

    def fail(self, fault: UpstreamFault, flight: Flight | None = None) -> None:
        """End one request, or all and later ones."""
        if flight is not None:
            if self._flights.get(flight.id) is flight:
                self._forget(flight)
                flight.end(fault)
            return
        self.failure = self.failure or fault
        flights, self._flights = list(self._flights.values()), {}
        self._successors.clear()
        for each in flights:
            each.end(self.failure)
        told, self.on_failure = self.on_failure, None
        if told is not None:
            told(self.failure)

    def _count_rubbish(self, count: int, fault: UpstreamFault) -> None:
        self.rubbish += count
        if self.rubbish > MAX_RUBBISH:
            self.fail(fault)

    def _sort(self, message: UpstreamMessage, flight: Flight | None) -> None:
        if not message.has_method:
            self._take_answer(message)
        elif message.has_id:
            self._take_question(message, flight)
        else:
            self._take_notice(str(message.method), message.params, flight)

    def _take_answer(self, message: UpstreamMessage) -> None:
        id = message.id
        flight = self._flights.get(int(id)) if type(id) in (int, float) and id == id // 1 else None
        if flight is None:  # answered already, given up, or never asked
            self._count_rubbish(message.has_id, UNASKED)
            return
        self._forget(flight)
        if not isinstance(message.error, msgspec.UnsetType):
            flight.end(messages.read_refusal(message.error))
            return
        members = messages.split_object(message.result)
        flight.end(members if members is not None else UpstreamFault("BAD_MESSAGE", "its result is no object"))

    def _take_question(self, message: UpstreamMessage, flight: Flight | None) -> None:
        method = str(message.method)
        if method == "ping":
            self._reply(messages.encode_answer(message.id, {}))
            return
        named = self._flights.get(_read_named(message.params) or 0) if self._names_requests else None
        if named is not None:
            named.events.put_nowait(FlightRequest(message.id, method, messages.split_object(message.params) or {}))
            return
        asked = flight if flight is not None and method in flight.can_ask else self._find_asked(method)
        question = Question(message.id, method, messages.read_object(message.params))
        if asked is None or asked.is_over or not asked.add(question, _size_of(message.params)):
            why = "no client that declared this has a call under way"
            self._reply(messages.encode_refusal(message.id, METHOD_NOT_FOUND, f"{method[:100]}: {why}"))

    def _find_asked(self, method: str) -> Flight | None:
        """Return the newest request whose client can answer: a question over pipes names no request."""
        waiting = {**self._flights, **self._successors}
        able = [waiting[id] for id in sorted(waiting) if method in waiting[id].can_ask]
        return able[-1] if able else None

    def _take_notice(self, method: str, raw: msgspec.Raw | msgspec.UnsetType, flight: Flight | None) -> None:
        params, id = messages.read_object(raw), _read_named(raw) if self._names_requests else None
        if id is not None:
            if id in self._flights:
                self._flights[id].add(MountNotice(method, params), _size_of(raw))
            return
        if method == PROGRESS:
            token = params.get("progressToken")
            flight = self._successors.get(token) or self._flights.get(token) if type(token) is int else None
        elif method == LOG:
            calls = (each for each in reversed(self._flights.values()) if each.is_call)
            flight = flight or next(calls, None)
        else:
            self._on_notice(method, params)
            return
        if flight is not None:
            flight.add(MountNotice(method, params), _size_of(raw))

    def _forget(self, flight: Flight) -> None:
        self._flights.pop(flight.id, None)
        if self._successors:
            self._successors = {id: after for id, after in self._successors.items() if after is not flight}

    def _reply(self, message: bytes) -> None:
        assert self.wire is not None
        if len(self._replies) >= MAX_REPLIES:
            self.fail(UpstreamFault("BAD_MESSAGE", "it asks for more than it takes answers to"))
            return
        task = asyncio.get_running_loop().create_task(self._send_quietly(message))
        self._replies.add(task)
        task.add_done_callback(self._replies.discard)

    def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification soon."""
        self._reply(messages.encode_notification(method, params))

    async def _send_quietly(self, message: bytes) -> None:
        try:
            if self.wire is not None:
                await self._send(message)
        except MountError as error:  # whoever waits for it hears of it
            log.debug("nothing can be sent to a mount: %s", error)


def _size_of(raw: msgspec.Raw | msgspec.UnsetType) -> int:
    return 0 if isinstance(raw, msgspec.UnsetType) else len(bytes(raw))


def _read_named(params: msgspec.Raw | msgspec.UnsetType) -> int | None:
    """Return the id of the request of ours that a message names, or None."""
    meta = (messages.split_object(params) or {}).get("_meta", msgspec.UNSET)
    id = messages.read_object(meta).get(REQUEST)
    return id if type(id) is int else None
