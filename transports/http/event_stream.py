"""Keep streams of server-sent events: events wait for their reader, and stay a while for one that comes back.

What happens to a slow reader: a stream holds at most `MAX_EVENTS` events and `MAX_BYTES` bytes. Beyond that it drops
new progress and log messages, and otherwise its oldest events. A reader that had not got those goes on with the rest
where event numbers show the loss (the sessions era), and is disconnected elsewhere. server.py disconnects a reader that
takes nothing at all for a minute. All streams of one principal share a budget: where it is used up, the streams that
lost their readers first end, then events are dropped as above, and an answer that finds no room becomes an error.
Source: HTML Living Standard, "Server-sent events"; MCP 2025-11-25 basic/transports, "Resumability and Redelivery".
"""

import asyncio
from collections.abc import Callable
from functools import partial

from toolgate.server.budget import Claim
from toolgate.server.protocol.messages import Failure, Notification, Outbound, Result, encode, refuse_too_large

MAX_EVENTS = 1_024  # of one stream: a progress message every 50 ms for as long as a call is held
MAX_BYTES = 4 * 2**20  # of one stream, and one message before that, however large: its reader may get a turn yet
MAX_RESUMED = 2**20  # of a stream that was read to its end: a larger one is not kept for a reader that comes back
MAX_PER_PRINCIPAL = 64 * 2**20  # bytes of all streams of one principal: what a client is slow to read, and resumption
MAX_ALL = 128 * 2**20  # of everybody's
ANSWER_MARK = "a"  # ends the id of the event after which nothing is to come
ANSWER_TYPES = (Result, Failure, list)  # what answers a request, or a batch of them
DROPPABLE = frozenset(("notifications/progress", "notifications/message"))
REPEATABLE = frozenset(  # news that says no more the second time: one that waits for a reader is enough
    (
        *(f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")),
        "notifications/resources/updated",
    )
)


class WakeEvent:
    """Wakes the one who waits. An `asyncio.Event` brings a queue for many: 700 bytes for every silent stream."""

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
    """Messages in the order they were sent, each with a number from 1; at most one reader is attached.

    `id` is unique within its session, of earlier processes too; event ids are `id-number`, and end in ANSWERED where
    the event answers the request, or the batch, that the stream is of. `numbered` says whether events carry ids at all.
    `wanted` is the scopes it takes to be told again what is on it. `claim` holds its events in a budget, and is offered
    while it has no reader: `forget` is called when it has ended.
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
        self._is_closed = False
        self.ended = False  # nothing more will come
        self.answered = 0  # number of the event that is the answer
        self.reader: object | None = None
        self.news = WakeEvent()
        self.pinged = False
        self.leaving = False  # the reader is to go, and to come back
        self.last = 0  # number of the newest event
        self.sent = 0  # number of the newest event that a reader was sent
        self.size = 0  # bytes held
        self._first = 1  # number of the oldest event kept
        self._events: list[bytes] = []  # a deque takes 700 bytes for nothing
        self._offer()

    def send(self, message: Outbound) -> None:
        """Add a message. This is what makes a stream a channel."""
        full = len(self._events) >= MAX_EVENTS or self.size >= MAX_BYTES
        if self.ended or (full and isinstance(message, Notification) and message.method in DROPPABLE):
            return
        data = encode(message)
        if (
            isinstance(message, Notification)
            and message.method in REPEATABLE
            and data in self.messages_after(self.sent)
        ):
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
        while len(self._events) > MAX_EVENTS or self.size - len(self._events[0]) > MAX_BYTES:
            self._drop()
        self.news.set()

    def restore(self, number: int, data: bytes) -> None:
        """Have an answer that an earlier process made, as event `number`, and nothing before it."""
        if self.claim is not None and not self.claim.grow(len(data)):
            return
        self._events, self.size = [data], len(data)
        self._first = self.last = self.answered = number
        self.ended = True

    def begin_after(self, number: int) -> None:
        """Go on behind event `number`, which an earlier process sent."""
        self._first, self.last, self.sent = number + 1, number, number

    def end(self) -> None:
        """Nothing more will come: a reader that has got everything is done."""
        self.ended = True
        self.news.set()

    def pause(self) -> None:
        """Have the reader go and come back, if it is one that can: it needs numbers to go on from."""
        if self.numbered:
            self.leaving = True
            self.news.set()

    def attach(self, reader: object) -> None:
        """Make `reader` the one that reads; another that does is sent away."""
        self.reader = reader
        if self.claim is not None:
            self.claim.withdraw()
        self.news.set()

    def release(self, reader: object) -> None:
        """Send `reader` away, if it still is the one that reads; what it has not got yet stays."""
        if self.reader is reader:
            self.reader = None
            self.news.set()
            self._offer()

    def close(self) -> None:
        """End it, and hold nothing of the budget any more once its reader has gone."""
        self._is_closed = True
        self.end()
        self._offer()

    def has_gap(self, cursor: int) -> bool:
        """Whether events after number `cursor` are gone."""
        return cursor + 1 < self._first

    def events_after(self, cursor: int) -> list[bytes]:
        """The events after number `cursor` that are still there, as they go over the wire."""
        begin = max(cursor + 1, self._first)
        return [self._format_event(begin + n, data) for n, data in enumerate(self.messages_after(cursor))]

    def size_after(self, cursor: int) -> int:
        """The bytes of the messages after number `cursor`."""
        return sum(map(len, self.messages_after(cursor)))

    def messages_after(self, cursor: int) -> list[bytes]:
        """The messages after number `cursor` that are still there."""
        return self._events[max(0, cursor + 1 - self._first) :]

    def forget(self, cursor: int) -> None:
        """Drop the events up to number `cursor`: no reader asks for them again."""
        while self._events and self._first <= cursor:
            self._drop()

    def format_primer(self, cursor: int, retry: int) -> bytes:
        """What a reader that may be sent away gets first: an id to come back with, and after how many milliseconds."""
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
            self.claim.shrink(min(size, self.claim.amount))  # an answer that said no was not counted

    def _has_room(self, message: Outbound, data: bytes) -> bool:
        """Take what the event needs of the budget. Older events give way, but not for an answer."""
        if self.claim is None:
            return True
        while not self.claim.grow(len(data)):
            if isinstance(message, ANSWER_TYPES) or not self._events:
                return False
            self._drop()
        return True

    def _offer(self) -> None:
        """Offer what it holds to other streams, as it has no reader; release all of it where it is closed."""
        if self.claim is None or self.reader is not None:
            return
        if self._is_closed:
            self.claim.release()
        elif self._forget is not None:
            self.claim.offer(partial(self._forget, self))
