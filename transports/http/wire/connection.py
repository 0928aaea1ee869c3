"""Serve one connection: read a request, call the handler, send its answer, then read the next request."""

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context
from functools import partial
from math import inf
from typing import Any, cast

from toolgate.server.base.http.head import END, MAX_HEAD, HttpError, find_control, read_head, skip_empty_lines
from toolgate.transports.http.wire.body import MAX_UNREAD, BodyTooSlowError, ClientDisconnectedError, IncomingBody
from toolgate.transports.http.wire.connections import ConnectionSlot
from toolgate.transports.http.wire.exchange import Exchange
from toolgate.transports.http.wire.listener import Listener
from toolgate.transports.http.wire.request import HttpRequest, WholeResponse, encode_response, refuse, status_line
from toolgate.transports.http.wire.unread import UnreadAnswers

MAX_UNPARSED = 64 * 1024  # bytes behind a request; then reading stops
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
FORWARDED = frozenset((b"forwarded", b"via", b"x-forwarded-for"))  # headers that proxies add
NO_ROOM = "too many connections: try again later"

log = logging.getLogger("toolgate.http")


class HttpConnection(asyncio.Protocol):
    """One connection. uvicorn makes it with `config`, `server_state` and the rest by name."""

    __slots__ = (
        "_begin",
        "_body",
        "_closes",
        "_has_ended",
        "_is_answering",
        "_is_lingering",
        "_is_reading",
        "_listener",
        "_loop",
        "_principal",
        "_request",
        "_scanned",
        "_server_state",
        "_slot",
        "_transport",
        "_unparsed",
        "_unread",
        "client",
        "deadline",
        "is_last",
    )

    def __init__(self, listener: Listener, *, server_state: Any, _loop: Any = None, **_settings: Any) -> None:
        self._listener = listener
        self._loop: asyncio.AbstractEventLoop = _loop or asyncio.get_running_loop()
        self._server_state = server_state
        self._transport: asyncio.Transport
        self._slot: ConnectionSlot
        self._request: HttpRequest | None = None
        self._body: IncomingBody | None = None  # of the request, until it is complete
        self._unparsed = b""  # what follows the request, from `_begin` on
        self._begin = 0
        self._scanned = 0  # where the search for the end of a head goes on
        self._is_answering = False  # the answer has begun
        self._closes = False  # after the current answer
        self._has_ended = False  # the client sends nothing more
        self._is_lingering = False  # the last answer is sent; what comes is dropped
        self._is_reading = True
        self._unread = UnreadAnswers(listener.answers)
        self._principal = ""  # the sender of the last request, if known
        self.client = ""
        self.deadline = inf
        self.is_last = False  # the next answer is

    # -- from the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        peer = transport.get_extra_info("peername")
        self.client = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        self._server_state.connections.add(self)
        self._slot = self._listener.connections.add(self, self.client)
        self.is_last = self._listener.connections.is_draining
        self.deadline = self._loop.time() + self._listener.limits.head
        self._listener.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server_state.connections.discard(self)
        self._listener.discard(self)
        self._slot.release()
        self._unread.end()
        self._keep(b"")
        self._lose_client()

    def data_received(self, data: bytes) -> None:
        if self._is_lingering or self._transport.is_closing():
            return
        if self._body is not None:
            self._receive_body(self._body, data)
            return
        if self._unparsed:
            data = self._unparsed[self._begin :] + data
            self._scanned -= self._begin
        self._unparsed, self._begin = data, 0
        if self._request is None and not self._unread.is_late:
            self._begin_request()
        elif len(self._unparsed) > MAX_UNPARSED:
            self._set_reading(False)

    def eof_received(self) -> bool:
        """Keep the connection open for an answer that is due, if its request is complete and allows that."""
        request = self._request
        if request is None:
            is_due = bool(self._unparsed) and self._scanned == self._begin  # not an unfinished head
        else:
            is_due = not request.ends_with_client
        if not is_due or self._body is not None or self._is_lingering:
            self._lose_client()
            return False
        self._has_ended = True
        return True

    def pause_writing(self) -> None:
        self.deadline = self._loop.time() + self._listener.limits.unread
        self._unread.begin(self._principal, self._transport.get_write_buffer_size(), self._disconnect_later)

    def resume_writing(self) -> None:
        self._unread.end()
        self.deadline = self._choose_deadline()
        if self._request is None:
            self._loop.call_soon(self._go_on)

    # -- from the server

    def expire(self) -> None:
        """End what has taken too long: a body by an answer, all else by closing the connection."""
        if self._unread.is_late or self._is_lingering:
            self._transport.abort()
        elif self._body is not None:
            self.deadline = self._loop.time() + self._listener.limits.linger
            self._closes = True
            self._set_reading(False)
            body, self._body = self._body, None
            body.fail(BodyTooSlowError)
        else:
            self._close()

    def drop(self) -> None:
        """Close the connection, which is answering no request."""
        self._slot.release()
        if self._unread.is_late:
            self._transport.abort()
        else:
            self._close()

    def close_after_answer(self) -> None:
        """Close after the current answer if its head can still say so, else after the next."""
        self.is_last = True

    def shutdown(self) -> None:
        """Close an idle connection now, and another one after its answer."""
        self._closes = True
        self.is_last = True
        if self._request is None:
            self._close()

    def abort(self) -> None:
        self._transport.abort()

    # -- requests

    def _begin_request(self) -> None:
        """Parse the next head, if it is there, and serve its request."""
        data, begin = self._unparsed, self._begin
        if data.startswith(b"\r\n", begin):
            begin = skip_empty_lines(data, begin)
        end = data.find(END, max(begin, self._scanned - 3))
        try:
            if end < 0 or end - begin > MAX_HEAD:
                self._check_unfinished(data, begin, end)
                return
            head = read_head(data[begin : end + 4])
        except HttpError as fault:
            self._refuse(fault)
            return
        begin, length = end + 4, head.length
        if length is not None and length <= len(data) - begin:
            self._keep(data, begin + length)
            self._serve(HttpRequest(head, data[begin : begin + length], None, self.client))
            return
        self._keep(b"")
        on_first = partial(self.send, CONTINUE) if head.expects_continue else None
        is_forwarded = not FORWARDED.isdisjoint(head.headers)
        self._body = body = IncomingBody(length, self._update_reading, on_first, is_forwarded=is_forwarded)
        self._serve(HttpRequest(head, None, body, self.client))
        if begin < len(data) and self._body is body:
            self._receive_body(body, data[begin:])

    def _keep(self, data: bytes, begin: int = 0) -> None:
        """Keep what is not parsed."""
        if begin == len(data):
            data, begin = b"", 0
        self._unparsed, self._begin, self._scanned = data, begin, begin

    def _check_unfinished(self, data: bytes, begin: int, end: int) -> None:
        """Wait for the rest of a head. Raises HttpError."""
        if end >= 0 or len(data) - begin > MAX_HEAD:
            raise HttpError(431, f"the head has more than {MAX_HEAD} bytes")
        if find_control(data, begin, self._scanned):
            raise HttpError(400, "the head has a control character")
        if self._has_ended:
            self._close()
        if self._scanned == self._begin:
            self.deadline = self._loop.time() + self._listener.limits.head
        self._scanned = len(data)

    def _serve(self, request: HttpRequest) -> None:
        self._request = request
        self._principal = ""
        self._listener.running += 1
        self._closes = self._closes or not request.head.persists
        self.deadline = self._choose_deadline()
        has_room = self._slot.begin_request()
        self._closes = self._closes or not has_room
        if has_room or self._listener.is_probe(request.head):
            Exchange(self, request, self._listener.context.copy()).begin(self._listener.handler)
        else:
            self.send_response(request, refuse(503, NO_ROOM, [(b"retry-after", b"1")], closes=True))

    # -- bodies

    def _receive_body(self, body: IncomingBody, data: bytes) -> None:
        try:
            rest = body.feed(data)
        except HttpError as fault:
            self._body = None
            body.fail(ClientDisconnectedError)
            self._refuse(fault)
            return
        if body.is_complete:
            self._body = None
            self._keep(rest)
            self.deadline = self._choose_deadline()
        else:
            self._extend_deadline(body, len(data))
            if body.is_paused:
                self._loop.call_soon(self._continue_body, body)
        self._update_reading()

    def _extend_deadline(self, body: IncomingBody, size: int) -> None:
        """Give a body more time for what came, so that a slow sender has a least rate to keep."""
        limits, now = self._listener.limits, self._loop.time()
        most = limits.quiet if body.is_dropped else limits.body
        self.deadline = min(self.deadline + size / limits.rate, now + most)

    def _continue_body(self, body: IncomingBody) -> None:
        if self._body is body:
            self._receive_body(body, b"")

    def _update_reading(self) -> None:
        """Read on unless the body's reader, or the requests before, are behind."""
        body = self._body
        if body is not None:
            is_late = body.unread > MAX_UNREAD  # the reader of the body, not its sender
            if is_late or self.deadline == inf:
                self.deadline = inf if is_late else self._choose_deadline()
            self._set_reading(not (is_late or body.is_paused))
            if body.is_dropped:
                self.deadline = min(self.deadline, self._loop.time() + self._listener.limits.quiet)
        else:
            self._set_reading(len(self._unparsed) - self._begin <= MAX_UNPARSED)

    def _set_reading(self, is_reading: bool) -> None:
        if self._is_reading != is_reading and not self._transport.is_closing():
            self._is_reading = is_reading
            if is_reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # -- answers

    def start(self, work: Coroutine[Any, Any, None], context: Context) -> None:
        """Run a part of an exchange in a task."""
        self._listener.start(work, context)

    def send_response(self, request: HttpRequest, response: WholeResponse) -> None:
        """Send a whole answer, and end the request."""
        self._closes = self._closes or self.is_last or response.closes
        if self._closes and not response.closes:
            response = WholeResponse(response.status, response.lines, response.body, closes=True)
        self._principal = request.principal
        self._listener.answered[response.status] += 1
        is_head = request.head.method == "HEAD"
        self.send(encode_response(response, self._listener.common, request.lines, is_head=is_head))
        self.end_answer()

    def begin_answer(self, request: HttpRequest, status: int, lines: bytes, *, closes: bool) -> bytes:
        """Return the head of an answer that is written in parts, without its empty line."""
        self._closes = self._closes or closes or self.is_last
        if request.incoming is not None and not request.incoming.is_complete:
            self._closes = True
        self._is_answering = True
        self._principal = request.principal
        self._listener.answered[status] += 1
        end = b"connection: close\r\n" if self._closes else b""
        return b"".join((status_line(status), self._listener.common, lines, request.lines, end))

    async def drain(self) -> None:
        await self._unread.wait()

    def end_answer(self) -> None:
        """End the request, and begin the next one in a turn of its own."""
        request, self._request = self._request, None
        if request is None:
            return
        request.watch_client(None)
        self._is_answering = False
        self._listener.running -= 1
        if self._closes or (self._has_ended and not self._unparsed):
            self._close_after_client()
            return
        self._slot.end_request()
        self.deadline = self._choose_deadline()
        if self._unparsed:
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Begin the next request, if the client has read the answers before it."""
        if self._request is not None or self._unread.is_late or self._is_lingering or self._transport.is_closing():
            return
        if self._unparsed:
            self._begin_request()
        self._update_reading()

    def send(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._listener.send(self._loop, self._transport, data)

    def _refuse(self, fault: HttpError) -> None:
        """Answer what is no request, and close the connection."""
        if self._is_answering:
            self._transport.abort()
            return
        is_head = self._request is not None and self._request.head.method == "HEAD"
        self._keep(b"")
        self._lose_client()
        self._listener.answered[fault.status] += 1
        response = refuse(fault.status, str(fault), closes=True)
        self.send(encode_response(response, self._listener.common, b"", is_head=is_head))
        self._close_after_client()

    # -- the end

    def _close_after_client(self) -> None:
        """Send the end of the answers, and close when the client has closed: bytes that are not read would reset the
        connection, and the client might lose the answer (RFC 9112 section 9.6)."""
        self._listener.flush()
        if self._is_lingering or self._transport.is_closing():
            return
        self._is_lingering = True
        self._keep(b"")
        self._body = None
        self._slot.end_request()
        if self._has_ended or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()
        self.deadline = self._choose_deadline()
        self._set_reading(True)

    def _close(self) -> None:
        if not self._transport.is_closing():
            self._listener.flush()
            self._transport.close()

    def _lose_client(self) -> None:
        request, self._request = self._request, None
        body, self._body = self._body, None
        if body is not None:
            body.fail(ClientDisconnectedError)
        if request is not None:
            self._listener.running -= 1
            request.lose_client()

    def _disconnect_later(self) -> None:
        """End a connection with too much unread data, but not within this write."""
        log.info("a reader is disconnected: too much waits for it, or for others of its principal")
        self._loop.call_soon(self._transport.abort)

    def _choose_deadline(self) -> float:
        """Return until when the client has to do what is next."""
        limits, now = self._listener.limits, self._loop.time()
        if self._unread.is_late:
            return now + limits.unread
        if self._is_lingering:
            return now + (limits.unread if self._transport.get_write_buffer_size() else limits.linger)
        if self._body is not None:
            return now + limits.body
        return now + limits.idle if self._request is None else inf
