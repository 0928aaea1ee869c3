"""Streams of server-sent events that remember: what was sent is kept a while, so that a reader who lost the connection
can go on where it was. Knows nothing of HTTP or sessions.

What happens to a slow reader: a stream holds at most `MAX_EVENTS` events and `MAX_BYTES` bytes. Beyond that progress
and log messages are not taken any more, and for the rest the oldest give way. A reader that had not got those yet is
disconnected: it may resume (in the sessions era) with what is left.
Source: HTML Living Standard, "Server-sent events"; MCP 2025-11-25 basic/transports, "Resumability and Redelivery".
"""

import asyncio
from collections import deque
from collections.abc import Callable

from toolgate.server.messages import Failure, Notification, Outbound, Result, encode

MAX_EVENTS = 1_024  # of one stream: a progress message every 50 ms for as long as a call is held
MAX_BYTES = 4 * 2**20  # of one stream; one message may be larger, and is then alone
PING = b": ping\r\n\r\n"
DROPPABLE = frozenset(("notifications/progress", "notifications/message"))


def is_answer(message: Outbound) -> bool:
    """Whether `message` answers a request, or a batch of them."""
    return isinstance(message, (Result, Failure, list))


class Stream:
    """Messages in the order they were sent, each with a number from 1; at most one reader is attached.

    `id` is unique within its session; event ids are `id-number`. `numbered` says whether events carry ids at all.
    """

    __slots__ = (
        "_events",
        "_first",
        "_size",
        "ended",
        "id",
        "last",
        "news",
        "numbered",
        "on_release",
        "pinged",
        "reader",
    )

    def __init__(self, id: str, *, numbered: bool) -> None:
        self.id = id
        self.numbered = numbered
        self.ended = False  # nothing more will come
        self.reader: object | None = None
        self.news = asyncio.Event()
        self.pinged = False
        self.last = 0  # number of the newest event
        self.on_release: Callable[[], None] | None = None  # called when a reader lets go
        self._first = 1  # number of the oldest event kept
        self._size = 0
        self._events: deque[bytes] = deque()

    def send(self, message: Outbound) -> None:
        """Add a message. This is what makes a stream a channel."""
        full = len(self._events) >= MAX_EVENTS or self._size >= MAX_BYTES
        if self.ended or (full and isinstance(message, Notification) and message.method in DROPPABLE):
            return
        data = encode(message)
        self._events.append(data)
        self._size += len(data)
        self.last += 1
        while len(self._events) > 1 and (len(self._events) > MAX_EVENTS or self._size > MAX_BYTES):
            self._drop()
        self.news.set()

    def end(self) -> None:
        """Nothing more will come: a reader that has got everything is done."""
        self.ended = True
        self.news.set()

    def release(self) -> None:
        """Send the reader away; what it has not got yet stays."""
        self.reader = None
        self.news.set()

    def missed(self, cursor: int) -> bool:
        """Whether events after number `cursor` are gone."""
        return cursor + 1 < self._first

    def after(self, cursor: int) -> list[bytes]:
        """The events after number `cursor` that are still there, as they go over the wire."""
        begin = max(cursor + 1, self._first)
        return [self._spelled(begin + n, data) for n, data in enumerate(self.bare_after(cursor))]

    def bare_after(self, cursor: int) -> list[bytes]:
        """The messages after number `cursor` that are still there."""
        return list(self._events)[max(0, cursor + 1 - self._first) :]

    def forget(self, cursor: int) -> None:
        """Drop what up to number `cursor` nobody will ask for again."""
        while self._events and self._first <= cursor:
            self._drop()

    def primer(self, retry: int) -> bytes:
        """The first event of a resumable stream: an id to come back with, and after how many milliseconds."""
        return f"id: {self.id}-0\r\nretry: {retry}\r\ndata:\r\n\r\n".encode()

    def _spelled(self, number: int, data: bytes) -> bytes:
        head = f"id: {self.id}-{number}\r\n".encode() if self.numbered else b""
        return b"".join((head, b"event: message\r\ndata: ", data, b"\r\n\r\n"))

    def _drop(self) -> None:
        self._size -= len(self._events.popleft())
        self._first += 1


class Pulse:
    """Keeps streams alive: one timer makes every open one send a comment, every `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._streams: set[Stream] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: Stream) -> None:
        self._streams.add(stream)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._beat)

    def discard(self, stream: Stream) -> None:
        self._streams.discard(stream)

    def _beat(self) -> None:
        self._timer = None
        for stream in self._streams:
            stream.pinged = True
            stream.news.set()
        if self._streams:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._beat)
