"""Speak HTTP/1.1 on one connection: uvicorn's protocol, with limits on what a client may hold."""

import asyncio
import logging
import sys
from collections.abc import Collection
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from toolgate.server.budget import Budget, Claim
from toolgate.transports.http.answer_queue import SMALL, AnswerQueue, HeadJoiningTransport
from toolgate.transports.http.asgi import Application, EagerApplication, Message, Receive, Scope, Send, finish, refuse
from toolgate.transports.http.compact_protocol import ArrivedCycle, CompactProtocol
from toolgate.transports.http.connections import Connections, ConnectionSlot
from toolgate.transports.http.known_head import MAX_LEARNED, KnownHead, learn_head

log = logging.getLogger("toolgate.http")

MAX_HEAD = 64 * 1024  # bytes of one request's head: tokens and cookies are a few kilobytes
MAX_BETWEEN = 64 * 1024  # bytes of a body's chunk extensions or trailers without content between them
HEADER_TIME = 15.0  # seconds for a whole head, and for the rest of a refused body
SEND_TIME = 60.0  # seconds a reader may leave 64 KiB unread before its connection is closed
WHOLE = b"%b%b%bcontent-length: %d\r\nx-request-id: %b\r\n\r\n%b"
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class HttpProtocol(CompactProtocol):
    """Limits what a client may hold: the size and time of a head, and the time without reading.

    A deadline runs while received data belongs to no request in progress, so single bytes keep no connection open. A
    body has its own (body.py). `probes` are answered however many connections there are. `answers` bounds unread
    answers by `principal`, the sender of the last request, if known.
    """

    _head = 0  # bytes of an unfinished head
    _between = 0  # bytes of a body since its last content
    _last_size = 0  # bytes that came last
    _is_between = True  # requests: the parser waits for the next head
    _in_body = False
    _known: KnownHead | None = None
    _learned = 0  # heads
    _head_timer: asyncio.TimerHandle | None = None
    _idle_timer: asyncio.TimerHandle | None = None
    _idle_since = 0.0  # loop time of the last answer
    _send_timer: asyncio.TimerHandle | None = None
    _is_last = False  # the next answer is
    _unread_claim: Claim | None = None
    _slot: ConnectionSlot
    principal = ""

    def __init__(
        self,
        *settings: Any,
        queue: AnswerQueue,
        connections: Connections,
        answers: Budget,
        probes: Collection[str],
        **more: Any,
    ) -> None:
        super().__init__(*settings, **more)
        self._queue = queue
        self._connections = connections
        self._answers = answers
        self._probes = probes
        self._served: Any = self.app
        self._begin: EagerApplication | None = getattr(self.app, "begin", None)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(HeadJoiningTransport(transport, self._queue))
        self._head_timer = self.loop.call_later(HEADER_TIME, self._too_slow)
        self._slot = self._connections.add(self, self.client[0] if self.client else "")
        self._idle_since = self.loop.time()
        self._is_last = self._connections.is_draining

    def connection_lost(self, exc: Exception | None) -> None:
        self._slot.release()
        self._stop_head_timer()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._known = None
        self.resume_writing()
        super().connection_lost(exc)
        if self._is_idle():
            self.cycle = self.scope = None  # type: ignore[assignment]  # they hold this

    def data_received(self, data: bytes) -> None:
        if self._known is not None and self._is_idle() and not self.transport.is_closing():
            found = self._known.match(data)
            if found is not None and self._slot.begin_request():
                self._begin_known(self._known, *found)
                return
        self._last_size = len(data)
        is_next = bool(self.cycle) and self._is_idle()
        before = self.cycle
        super().data_received(data)
        if is_next and self._is_between and self.cycle is not before and self._learned < MAX_LEARNED:
            self._learn(data)
        if self._head_timer is None and getattr(self.cycle, "response_complete", True):  # there is no cycle at first
            self._head_timer = self.loop.call_later(HEADER_TIME, self._too_slow)
        if self._head_timer is not None and not self._in_body:
            self._head += len(data)
            if self._head > MAX_HEAD and not self.transport.is_closing():
                self._refuse_head()
        if self._in_body:
            self._between += len(data)
            if self._between > MAX_BETWEEN + self._last_size and not self.transport.is_closing():
                self.transport.close()

    def _is_idle(self) -> bool:
        """Whether all that came belongs to requests that are answered."""
        return self._is_between and getattr(self.cycle, "response_complete", True)

    def _learn(self, data: bytes) -> None:
        """Know this request's head again. A connection's first request is often its only one."""
        scope: Scope = self.scope  # type: ignore[assignment]
        if self.cycle.keep_alive and "toolgate.starts" in scope:
            self._learned += 1
            self._known = scope["toolgate.head"] = learn_head(data, scope)

    def _begin_known(self, head: KnownHead, length: bytes, body: bytes) -> None:
        """Begin a request with a known head, as the parser would."""
        if self._head_timer is not None:
            self._stop_head_timer()
        self.principal = ""
        scope = head.create_scope(length)
        scope["toolgate.connection"] = self
        scope["toolgate.starts"] = self._queue.start_request
        self.scope = scope  # type: ignore[assignment]
        cycle = self.cycle = ArrivedCycle(self, scope, body, keep_alive=not self._is_last)
        self._queue.unstarted += 1
        self._queue.begin(self._idle_since, self._run if self._begin is None else self._run_known, cycle, self._served)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Begin the request in its turn. uvicorn calls this too."""
        self._queue.begin(self._idle_since, self._run, cycle, app)

    def _run(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._follow(self._queue.steps.run(cycle.run_asgi(app)))

    def _run_known(self, cycle: RequestResponseCycle, _app: Any) -> None:
        """Begin a request with a known head. Where all of it is done at once, it takes no task, and nothing is awaited;
        uvicorn awaits what is left, and answers for what fails."""
        assert self._begin is not None
        context = self._queue.steps.copy_context()
        try:
            pending = context.run(self._begin, cycle.scope, cycle.receive, cycle.send)  # type: ignore[arg-type]
        except BaseException as error:  # noqa: BLE001  # uvicorn logs it
            pending = _fail(error)
        if pending is not None or not cycle.response_complete:
            self._follow(self._queue.steps.run(cycle.run_asgi(lambda *_: finish(pending)), context))

    def _follow(self, task: "asyncio.Task[Any] | None") -> None:
        if task is not None:
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def take_body(self, scope: Scope, most: int) -> bytes | None:
        """Return the body of the request of `scope` if all of it has come, and has at most `most` bytes. `receive` then
        has an empty one left."""
        cycle = self.cycle
        body = cycle.body
        is_whole = cycle.scope is scope and not (cycle.more_body or cycle.waiting_for_100_continue)
        if not is_whole or len(body) > most or cycle.disconnected:
            return None
        cycle.body = bytearray()
        return bytes(body)

    def on_message_begin(self) -> None:
        self._is_between = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the head. A trailer is dropped: nothing may merge it (RFC 9110 section 6.5.1)."""
        if not self._in_body:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._between = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            # the parser takes the body of such a request for the next request
            self.send_400_response("This server does not upgrade connections.")
            raise ValueError("an upgrade is offered")  # ends the parsing
        if self._head + self._last_size > MAX_HEAD and self._head_size() > MAX_HEAD:
            self._refuse_head()
            raise ValueError("the head is too large")  # ends the parsing
        self._stop_head_timer()
        has_room = self._slot.begin_request()
        self._in_body = True
        if getattr(self.cycle, "response_complete", True):  # else the current answer is its own sender's
            self.principal = ""
        self.scope["toolgate.connection"] = self  # type: ignore[typeddict-unknown-key]  # ours
        is_served = has_room or self.url.decode("ascii", "replace") in self._probes
        self.app = self._served if is_served else _refuse
        if self.parser is not None and self.parser.get_http_version() == "1.0":
            self.app = partial(_serve_unchunked, self.app)
        before = self.cycle
        starts = is_served and getattr(before, "response_complete", True)  # else it is in a queue, and may never start
        super().on_headers_complete()
        if starts and self.cycle is not before:
            self._queue.unstarted += 1
            self.scope["toolgate.starts"] = self._queue.start_request  # type: ignore[typeddict-unknown-key]  # ours
        if self._is_last or not has_room:
            self.cycle.keep_alive = False

    def eof_received(self) -> None:
        """Send what waits: the transport closes itself now."""
        self.transport.send_answer()  # type: ignore[attr-defined]  # ours
        super().eof_received()

    def on_message_complete(self) -> None:
        self._in_body = False
        self._is_between = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begin the next request, or be idle, when all of an answer is written."""
        self.transport.flush()  # type: ignore[attr-defined]  # ours
        self._end_request()

    def _end_request(self) -> None:
        """One timer serves many answers; uvicorn would make one for each."""
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
            else:
                self._idle_since = self.loop.time()
                if self._idle_timer is None:
                    self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._end_idle)
            self.flow.resume_reading()
        if self.cycle.response_complete:  # else another request arrived meanwhile
            self._slot.end_request()
        if self._in_body and self._head_timer is None:
            self._head_timer = self.loop.call_later(HEADER_TIME, self._too_slow)  # for the rest of a refused body

    def send_whole(self, scope: Scope, status: int, lines: bytes, id: bytes, body: bytes) -> bool:
        """Send the whole answer to the request of `scope` in one write, and return True, if it is small and ordinary.

        `lines` are its first header lines with their line ends; nothing checks them. `id` is that of the request.
        uvicorn's `send`, called twice, writes the same bytes at a higher cost. It sends all other answers: to HEAD, to
        HTTP/1.0, with `connection: close`, to a reader who is behind, and to a client that has sent more requests
        meanwhile.
        """
        cycle = self.cycle
        is_ordinary = cycle.scope is scope and cycle.keep_alive and not (cycle.response_started or cycle.disconnected)
        if not is_ordinary or scope["method"] == "HEAD" or self.flow.write_paused or len(body) > SMALL:
            return False
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        common = self._queue.common_lines(cycle.default_headers)
        answer = WHOLE % (STATUS_LINE[status], common, lines, len(body), id, body)
        self.transport.write_answer(answer)  # type: ignore[attr-defined]  # ours
        cycle.message_event.set()
        self._end_request()
        return True

    def join_head(self) -> None:
        """Hold the next write, the head of an answer, for its body. A client that waits for a 100 Continue may send its
        body or the next request now, so the connection closes (RFC 9110 section 10.1.1)."""
        if self.cycle.waiting_for_100_continue:
            self.cycle.keep_alive = False
        self.transport.is_head_next = True  # type: ignore[attr-defined]  # ours

    def drop(self) -> None:
        """Close the connection at once, discarding unread data."""
        self._slot.release()
        if self._send_timer is not None:
            self.transport.abort()
        else:
            self.transport.close()

    def close_after_answer(self) -> None:
        """Close after the current answer if its head can still say so, else after the next."""
        self._is_last = True
        # uvicorn declares that a cycle always exists, but starts with None
        if self.cycle is not None and not self.cycle.response_started:  # pyright: ignore[reportUnnecessaryComparison]
            self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._send_timer is None:
            self._send_timer = self.loop.call_later(SEND_TIME, self._give_up)
        if self._unread_claim is None:  # the whole answer counts until it is nearly sent: its last part is small
            size = self.transport.get_write_buffer_size()
            self._unread_claim = self._answers.take(self.principal, size, self._disconnect)
            if self._unread_claim is None:
                self._disconnect()

    def resume_writing(self) -> None:
        if self._unread_claim is not None:
            self._unread_claim.release()
            self._unread_claim = None
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None
        super().resume_writing()

    def _end_idle(self) -> None:
        """Close the connection if it has been idle for long enough, else look again when it may have been."""
        self._idle_timer = None
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if not self._is_idle():
            return  # the end of the request sets the timer again
        if left > 0:
            self._idle_timer = self.loop.call_later(left, self._end_idle)
        elif not self.transport.is_closing():
            self.transport.close()

    def _stop_head_timer(self) -> None:
        self._head = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_size(self) -> int:
        return sum(len(name) + len(value) for name, value in self.headers) + len(self.url)

    def _refuse_head(self) -> None:
        self.transport.write(TOO_LARGE)
        self.transport.close()

    def _too_slow(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _disconnect(self) -> None:
        """End a connection with too much unread data, but not within this write."""
        log.info("a reader is disconnected: too much waits for it, or for others of its principal")
        self.loop.call_soon(self.transport.abort)

    def _give_up(self) -> None:
        self._send_timer = None
        log.info("a reader took nothing for %d s and is disconnected", SEND_TIME)
        self.transport.abort()


async def _serve_unchunked(application: Application, scope: Scope, receive: Receive, send: Any) -> None:
    """Serve a client of HTTP/1.0: a body without a length ends with the connection (RFC 9112 section 6.3)."""
    cycle = send.__self__  # uvicorn's, which would send chunks, and checks the length
    is_open = False

    async def send_unchunked(message: Message) -> None:
        nonlocal is_open
        if message["type"] == "http.response.start":
            is_open = all(name != b"content-length" for name, _ in message["headers"])
            if is_open:
                cycle.chunked_encoding, cycle.expected_content_length = False, sys.maxsize
        elif is_open and not message.get("more_body"):
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    await application(scope, receive, send_unchunked)


async def _fail(error: BaseException) -> None:
    try:
        raise error
    finally:
        del error  # whose traceback holds this frame


async def _refuse(_scope: Scope, _receive: Receive, send: Send) -> None:
    await refuse(send, 503, "too many connections", [(b"retry-after", b"5")])
