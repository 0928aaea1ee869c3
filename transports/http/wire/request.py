"""Define a request, and the kinds of answer to it."""

from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import TypeAlias

import msgspec

from toolgate.server.base.http.head import Head, HeaderLines, format_lines
from toolgate.transports.http.wire.body import IncomingBody
from toolgate.transports.http.wire.writer import AnswerWriter

TEXT = b"content-type: text/plain; charset=utf-8\r\n"


class HttpRequest(msgspec.Struct, eq=False):
    """A request whose head is there.

    - `body`: the whole body if it came with the head or is empty; else None, and `read` returns it in parts.
    - `client`: the peer's address, or "".
    - `lines`: header lines that its answer has beside its own.
    - `principal`: the name of the sender, once it is known.
    - `ends_with_client`: whether its client's last byte means that it has gone. Else the answer is still sent.
    - `on_end`: called once, when the answer is whole, or written if it is streamed, or will not come.
    """

    head: Head
    body: bytes | None
    incoming: IncomingBody | None
    client: str
    lines: bytes = b""
    principal: str = ""
    ends_with_client: bool = False
    on_end: Callable[[], object] | None = None
    is_lost: bool = False  # its client has gone
    _on_disconnect: Callable[[], object] | None = None

    __repr__ = object.__repr__  # the headers hold tokens

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        return self.head.headers

    async def read(self) -> tuple[bytes, bool]:
        """Return the next bytes of the body, and whether more follow.

        Raises BodyTooSlowError, ClientDisconnectedError.
        """
        if self.incoming is not None:
            return await self.incoming.read()
        body, self.body = self.body or b"", b""
        return body, False

    def take_body(self, limit: int) -> bytes | None:
        """Take a body of at most `limit` bytes that came whole with its head, or return None: it is to be read."""
        body = self.body
        if body is None or len(body) > limit:
            return None
        self.body = b""
        return body

    def watch_client(self, on_disconnect: Callable[[], object] | None) -> None:
        """Call `on_disconnect` when the client disconnects, or now if it has. None ends the watch."""
        self._on_disconnect = on_disconnect
        if self.is_lost:
            self.lose_client()

    def lose_client(self) -> None:
        """Note that the client has gone."""
        self.is_lost = True
        on_disconnect, self._on_disconnect = self._on_disconnect, None
        if on_disconnect is not None:
            on_disconnect()


class WholeResponse(msgspec.Struct, frozen=True, eq=False):
    """An answer that is whole. `lines` are its header lines, without those of its length; see `format_lines`.

    `closes`: the connection closes after it. The body is not sent to HEAD, nor with 204 and 304.
    """

    status: int
    lines: bytes = b""
    body: bytes = b""
    closes: bool = False


class StreamedResponse(msgspec.Struct, frozen=True, eq=False):
    """An answer that `write` sends in parts, in a task of its own. It is called even if the client has gone."""

    write: Callable[[AnswerWriter], Awaitable[None]]


class PendingResponse(msgspec.Struct, eq=False):
    """An answer that is decided later, by `set`."""

    _answer: "Answer | None" = None
    _changes: "tuple[Callable[[Answer], Answer], ...]" = ()
    _on_answer: "Callable[[Answer], None] | None" = None

    def set(self, answer: "Answer") -> None:
        """Decide the answer. The callbacks are forgotten, so that no circle keeps the request."""
        changes, self._changes = self._changes, ()
        for change in changes:
            answer = change(answer)
        on_answer, self._on_answer = self._on_answer, None
        if on_answer is None:
            self._answer = answer
        else:
            on_answer(answer)

    def change(self, change: "Callable[[Answer], Answer]") -> "PendingResponse":
        """Let `change` see the answer first, and return what is sent."""
        self._changes += (change,)
        return self

    def then(self, on_answer: "Callable[[Answer], None]") -> None:
        """Call `on_answer` with the answer, once."""
        if self._answer is not None:
            on_answer(self._answer)
        else:
            self._on_answer = on_answer


Answer: TypeAlias = "WholeResponse | StreamedResponse | PendingResponse | Awaitable[Answer]"
Handler = Callable[[HttpRequest], Answer]


def refuse(status: int, text: str, headers: HeaderLines = (), *, closes: bool = False) -> WholeResponse:
    """Answer with a sentence."""
    return WholeResponse(status, TEXT + format_lines(headers), text.encode() + b"\n", closes)


def encode_response(response: WholeResponse, common: bytes, extra: bytes, *, is_head: bool) -> bytes:
    """Return the bytes of a response. `common` are the lines of all answers, `extra` those of this one."""
    status, body = response.status, response.body
    end = b"connection: close\r\n\r\n" if response.closes else b"\r\n"
    if status in (204, 304):
        return b"%b%b%b%b%b" % (status_line(status), common, response.lines, extra, end)
    length = b"content-length: %d\r\n" % len(body)
    head = b"%b%b%b%b%b%b" % (status_line(status), common, response.lines, length, extra, end)
    return head if is_head else head + body


@lru_cache(128)
def status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()
