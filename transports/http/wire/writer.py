"""Write an answer in parts: an event stream, or a page."""

from typing import Protocol

SEND_CHUNK = b"%x\r\n%b\r\n"
LAST_CHUNK = b"0\r\n\r\n"


class ResponseSink(Protocol):
    """The connection, as an answer sees it."""

    def begin_answer(self, status: int, lines: bytes, *, closes: bool) -> bytes:
        """Return the head of an answer, without its empty line."""
        ...

    def send(self, data: bytes) -> None: ...

    async def drain(self) -> None:
        """Wait until the client has read most of what was sent, or has gone."""
        ...

    def end_answer(self) -> None: ...

    def abort(self) -> None: ...


class AnswerWriter:
    """Writes one answer.

    The head is sent with the first part. Without a `length` the body is chunked, or ends with the connection for a
    client of HTTP/1.0.
    """

    __slots__ = (
        "_is_chunked",
        "_is_empty",
        "_is_head",
        "_is_old",
        "_left",
        "_sink",
        "_unsent",
        "has_begun",
        "has_ended",
    )

    def __init__(self, sink: ResponseSink, *, is_head: bool, is_old: bool) -> None:
        self.has_begun = False
        self.has_ended = False
        self._sink = sink
        self._unsent = b""  # the head, and parts that wait for the next one
        self._is_head = is_head  # the method is HEAD
        self._is_old = is_old  # the client speaks HTTP/1.0
        self._is_chunked = False
        self._is_empty = False
        self._left: int | None = None  # bytes to come, if that is known

    def begin(self, status: int, lines: bytes, length: int | None = None, *, closes: bool = False) -> None:
        """Begin the answer. `lines` are its header lines, without those of its length.

        This and the other methods raise RuntimeError where the answer has begun or ended before: what follows would be
        read as another answer.
        """
        if self.has_begun:
            raise RuntimeError("the answer has begun")
        self.has_begun = True
        self._is_empty = self._is_head or status in (204, 304)
        if length is not None:
            self._left = length
            if status != 204:  # RFC 9110 section 8.6
                lines += b"content-length: %d\r\n" % length
        elif not self._is_old and not self._is_empty:
            self._is_chunked = True
            lines += b"transfer-encoding: chunked\r\n"
        self._unsent = self._sink.begin_answer(status, lines, closes=closes) + b"\r\n"

    async def write(self, data: bytes) -> None:
        """Send a part of the body, and wait for a slow client. Raises RuntimeError for more than its length."""
        self.join(data)
        if data and not self._is_empty:
            await self.flush()

    def join(self, data: bytes) -> None:
        """Send a part of the body together with the next part or the end. Raises RuntimeError like `write`."""
        self._check_open()
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                raise RuntimeError("the body is longer than its Content-Length")
        if data and not self._is_empty:
            self._unsent += SEND_CHUNK % (len(data), data) if self._is_chunked else data

    async def flush(self) -> None:
        """Send what was joined, and wait for a slow client."""
        unsent, self._unsent = self._unsent, b""
        if unsent:
            self._sink.send(unsent)
            await self._sink.drain()

    def end(self) -> None:
        """End the answer. One that is shorter than its length ends with the connection."""
        self._check_open()
        self.has_ended = True
        last = self._unsent + (LAST_CHUNK if self._is_chunked else b"")
        if last:
            self._sink.send(last)
        if self._left and not self._is_empty:
            self._sink.abort()
        else:
            self._sink.end_answer()

    def _check_open(self) -> None:
        if not self.has_begun or self.has_ended:
            raise RuntimeError("the answer has not begun, or has ended")
