"""Keep streams of server-sent events for their readers, and for a while for readers that return.

A stream holds at most `MAX_EVENTS` events and `MAX_BYTES` bytes. Beyond that it drops new progress and log messages,
then its oldest events. While an unsent answer waits, no unsent event is dropped for its size. A slow reader continues
after the gap if event numbers show the loss (the sessions era), else it is disconnected. server.py disconnects a reader
that takes nothing for a minute. All streams of one principal share a budget. When it is used up, streams that lost
their readers first end, then events are dropped as above, and an answer without room becomes an error.
Source: HTML Living Standard, "Server-sent events"; MCP 2025-11-25 basic/transports, "Resumability and Redelivery".
"""

import asyncio
from collections.abc import Callable
from functools import partial

from toolgate.server.base.limits.budget import Claim
from toolgate.server.protocol.messages import Failure, Notification, Outbound, Result, encode, refuse_too_large

MAX_EVENTS = 1_024  # of one stream: a progress message every 50 ms for as long as a call is held
MAX_BYTES = 4 * 2**20  # of one stream, besides its newest message, however large
MAX_RESUMED = 2**20  # of a stream read to its end: a larger one is not kept for a returning reader
MAX_PER_PRINCIPAL = 64 * 2**20  # bytes of all streams of one principal: unread events, and events kept for resumption
MAX_ALL = 128 * 2**20  # bytes of all streams
ANSWER_MARK = "a"  # ends the id of a stream's last event
ANSWER_TYPES = (Result, Failure, list)  # answers to a request or a batch
DROPPABLE = frozenset(("notifications/progress", "notifications/message"))
MERGEABLE = frozenset(  # a repeated one tells nothing new: one waiting for a reader is enough
    f"notifications/{name}"
    for name in ("tools/list_changed", "prompts/list_changed", "resources/list_changed", "resources/updated")
)


class WakeEvent:
    """Wakes a single waiter. An `asyncio.Event` holds a queue: 700 bytes for every silent stream."""

    __slots__ = ("_rung", "_waiter")

    def __init__(self) -> None:
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        self._rung = False

    async def wait(self) -> None:
        if not self._rung:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


class EventStream:
    """Messages in order, numbered from 1; at most one reader is attached.

    `id` is unique within its session, across processes. Event ids are `id-number`, with ANSWER_MARK for the answer to
    the stream's request or batch. `numbered`: whether events carry ids. `wanted`: the scopes needed to resume. `claim`
    holds its events in a budget, and may be taken back while it has no reader; `forget` is called then. `on_event` is
    called with the stream after each new event.
    """

    can_ask = True

    __slots__ = (
        "_events",
        "_first",
        "_forget",
        "_is_closed",
        "answered",
        "claim",
        "ended",
        "id",
        "last",
        "leaving",
        "news",
        "numbered",
        "on_event",
        "pinged",
        "reader",
        "sent",
        "size",
        "wanted",
    )

    def __init__(
        self,
        id: str,
        *,
        numbered: bool,
        wanted: frozenset[str] = frozenset(),
        claim: Claim | None = None,
        forget: "Callable[[EventStream], None] | None" = None,
    ) -> None:
        self.id = id
        self.numbered = numbered
        self.wanted = wanted
        self.claim = claim
        self._forget = forget
        self.on_event: Callable[[EventStream], None] | None = None
        self._is_closed = False
        self.ended = False  # nothing more will come
        self.answered = 0  # number of the event that is the answer
        self.reader: object | None = None
        self.news = WakeEvent()
        self.pinged = False
        self.leaving = False  # the reader must disconnect and come back
        self.last = 0  # number of the newest event
        self.sent = 0  # number of the newest event sent to a reader
        self.size = 0  # bytes held
        self._first = 1  # number of the oldest event kept
        self._events: list[bytes] = []  # a deque takes 700 bytes when empty
        self._offer()

    @property
    def is_full(self) -> bool:
        """Return whether the reader has as much left to read as leaves room for others' messages."""
        return self.last - self.sent > MAX_EVENTS // 4 or self.size_after(self.sent) > MAX_BYTES // 4

    def send(self, message: Outbound) -> None:
        """Add a message."""
        full = len(self._events) >= MAX_EVENTS or self.size >= MAX_BYTES
        if self.ended or (full and isinstance(message, Notification) and message.method in DROPPABLE):
            return
        data = encode(message)
        if isinstance(message, Notification) and message.method in MERGEABLE and data in self.messages_after(self.sent):
            return
        if not self._has_room(message, data):
            if not isinstance(message, ANSWER_TYPES):
                return
            data = encode(refuse_too_large(message))
        self._events.append(data)
        self.size += len(data)
        self.last += 1
        if isinstance(message, ANSWER_TYPES):
            self.answered = self.last
        if self.on_event is not None:
            self.on_event(self)
        while len(self._events) > MAX_EVENTS or self._is_too_large():
            self._drop()
        self.news.set()

    def copy(self, number: int, data: bytes, *, is_answer: bool) -> None:
        """Add event `number` of the same stream at another replica, unless it is here."""
        if number <= self.last or self.ended:
            return
        if self.claim is not None and not self.claim.grow(len(data)):
            self.end()
            return
        if number > self.last + 1:  # the events between are lost
            while self._events:
                self._drop()
            self._first = number
        self._events.append(data)
        self.size += len(data)
        self.last = number
        if is_answer:
            self.answered = number
        while len(self._events) > MAX_EVENTS or self._is_too_large():
            self._drop()
        self.news.set()

    def restore(self, number: int, data: bytes) -> None:
        """Hold an earlier process's answer as event `number`, and nothing before it."""
        if self.claim is not None and not self.claim.grow(len(data)):
            return
        self._events, self.size = [data], len(data)
        self._first = self.last = self.answered = number
        self.ended = True

    def begin_after(self, number: int) -> None:
        """Continue after event `number`, which an earlier process sent."""
        self._first, self.last, self.sent = number + 1, number, number

    def end(self) -> None:
        """Accept no more messages: a reader leaves once it has all events."""
        self.ended = True
        self.news.set()

    def pause(self) -> None:
        """Disconnect the reader so that it comes back, if numbers let it continue."""
        if self.numbered:
            self.leaving = True
            self.news.set()

    def attach(self, reader: object) -> None:
        """Make `reader` the stream's reader; a previous one is disconnected."""
        self.reader = reader
        if self.claim is not None:
            self.claim.withdraw()
        self.news.set()

    def release(self, reader: object) -> None:
        """Detach `reader` if it is still attached; its unsent events stay."""
        if self.reader is reader:
            self.reader = None
            self.news.set()
            self._offer()

    def close(self) -> None:
        """End the stream, and release its budget once its reader has gone."""
        self._is_closed = True
        self.end()
        self._offer()

    def has_gap(self, cursor: int) -> bool:
        """Whether events after number `cursor` are gone."""
        return cursor + 1 < self._first

    def events_after(self, cursor: int) -> list[bytes]:
        """Return the kept events after number `cursor` in wire format."""
        begin = max(cursor + 1, self._first)
        return [self._format_event(begin + n, data) for n, data in enumerate(self.messages_after(cursor))]

    def size_after(self, cursor: int) -> int:
        """Return the size of the messages after number `cursor`."""
        return sum(map(len, self.messages_after(cursor)))

    def messages_after(self, cursor: int) -> list[bytes]:
        """Return the kept messages after number `cursor`."""
        return self._events[max(0, cursor + 1 - self._first) :]

    def forget(self, cursor: int) -> None:
        """Drop the events up to number `cursor`, which no reader requests again."""
        while self._events and self._first <= cursor:
            self._drop()

    def format_primer(self, cursor: int, retry: int) -> bytes:
        """Return the first event for a reader: an id to come back with, and after how many milliseconds."""
        return f"id: {self.id}-{cursor}\r\nretry: {retry}\r\ndata:\r\n\r\n".encode()

    def _format_event(self, number: int, data: bytes) -> bytes:
        mark = ANSWER_MARK if number == self.answered else ""
        head = f"id: {self.id}-{number}{mark}\r\n".encode() if self.numbered else b""
        return b"".join((head, b"event: message\r\ndata: ", data, b"\r\n\r\n"))

    def _drop(self) -> None:
        size = len(self._events.pop(0))
        self.size -= size
        self._first += 1
        if self.claim is not None:
            self.claim.shrink(min(size, self.claim.amount))  # an error sent in its place was not counted

    def _is_too_large(self) -> bool:
        is_awaited = self._first > self.sent and self.answered > self.sent
        return not is_awaited and self.size - len(self._events[0]) > MAX_BYTES

    def _has_room(self, message: Outbound, data: bytes) -> bool:
        """Claim the event's size. Older events are dropped for it, unless it is an answer."""
        if self.claim is None:
            return True
        while not self.claim.grow(len(data)):
            if isinstance(message, ANSWER_TYPES) or not self._events:
                return False
            self._drop()
        return True

    def _offer(self) -> None:
        """Offer the claim of a stream without a reader to other streams, or release it if closed."""
        if self.claim is None or self.reader is not None:
            return
        if self._is_closed:
            self.claim.release()
        elif self._forget is not None:
            self.claim.offer(partial(self._forget, self))
