"""Listen for HTTP with uvicorn, limit what clients may hold, and shut down in order."""

import asyncio
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Collection, Coroutine, Generator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from toolgate.server.budget import Budget, Claim
from toolgate.transports.http.answer_queue import AnswerQueue, HeadJoiningTransport
from toolgate.transports.http.asgi import Application, Message, Receive, Scope, Send, refuse
from toolgate.transports.http.connections import MAX_CONNECTIONS, Connections, ConnectionSlot

log = logging.getLogger("toolgate.http")

MAX_HEAD = 64 * 1024  # bytes of one request's head: tokens and cookies are a few kilobytes
HEADER_TIME = 15.0  # seconds for a whole head, and for the rest of a refused body
SEND_TIME = 60.0  # seconds a reader may leave 64 KiB unread before its connection is closed
KEEP_ALIVE = 130  # seconds an idle connection is kept: longer than proxies keep it (nginx 60, Traefik 90, Caddy 120)
CLOSE_TIME = 2.0  # seconds for the last bytes to be sent
LEAVE_TIME = 0.5  # seconds for clients to disconnect after an answer: requests may be arriving
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class HttpProtocol(HttpToolsProtocol):
    """Limits what a client may hold: the size and time of a head, and the time without reading.

    A deadline runs while received data belongs to no request in progress, so single bytes keep no connection open. A
    body has its own (body.py). `probes` are answered however many connections there are. `answers` bounds unread
    answers by `principal`, the sender of the last request, if known.
    """

    _head = 0  # bytes of an unfinished head
    _last_size = 0  # bytes that came last
    _in_body = False
    _head_timer: asyncio.TimerHandle | None = None
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
        self._served = self.app

    def connection_made(self, transport: Any) -> None:
        super().connection_made(HeadJoiningTransport(transport, self._queue))  # type: ignore[arg-type]  # all of a transport that uvicorn uses
        self._head_timer = self.loop.call_later(HEADER_TIME, self._too_slow)
        self._slot = self._connections.add(self, self.client[0] if self.client else "")

    def connection_lost(self, exc: Exception | None) -> None:
        self._slot.release()
        self._stop_head_timer()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._last_size = len(data)
        super().data_received(data)
        if self._head_timer is None and getattr(self.cycle, "response_complete", True):  # there is no cycle at first
            self._head_timer = self.loop.call_later(HEADER_TIME, self._too_slow)
        if self._head_timer is not None and not self._in_body:
            self._head += len(data)
            if self._head > MAX_HEAD and not self.transport.is_closing():
                self._refuse_head()

    def on_headers_complete(self) -> None:
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
            self.scope["toolgate.starts"] = self.start_request  # type: ignore[typeddict-unknown-key]  # ours
        if self._is_last or not has_room:
            self.cycle.keep_alive = False

    def eof_received(self) -> None:
        """Send what waits: the transport closes itself now."""
        self.transport.send_answer()  # type: ignore[attr-defined]  # ours
        super().eof_received()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.transport.flush()  # type: ignore[attr-defined]  # ours
        super().on_response_complete()
        if self.cycle.response_complete:  # else another request arrived meanwhile
            self._slot.end_request()
        if self._in_body and self._head_timer is None:
            self._head_timer = self.loop.call_later(HEADER_TIME, self._too_slow)  # for the rest of a refused body

    def start_request(self, is_large: bool) -> None:
        """Note that the work on a request begins, whose body may be large."""
        self._queue.start_request(is_large)

    def join_head(self) -> None:
        """Hold the next write, the head of an answer, for its body."""
        self.transport.is_head_next = True  # type: ignore[attr-defined]  # ours

    def drop(self) -> None:
        """Close the connection at once, discarding unread data."""
        self._slot.release()
        if self._send_timer is not None:
            self.transport.abort()
        else:
            self.transport.close()

    def close_after_answer(self) -> None:
        """Close after the current answer, or after the next."""
        self._is_last = True
        # uvicorn declares that a cycle always exists, but starts with None
        if self.cycle is not None and not self.cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
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


class HttpServer(uvicorn.Server):
    """uvicorn's server without its signal handlers: `stop` ends it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def main_loop(self) -> None:
        """Wake once a second, for the Date header, until stopped."""
        counter = 0
        while not self.stopping.is_set():
            await self.on_tick(counter)
            counter += 10
            try:
                async with asyncio.timeout(1.0):
                    await self.stopping.wait()
            except TimeoutError:
                continue


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(2_048)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound


async def serve(
    application: Any,
    listening: socket.socket,
    finish: Callable[[], Coroutine[Any, Any, None]],
    *,
    connections: Connections,
    answers: Budget,
    probes: Collection[str] = (),
    is_handed: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT; then accept no more, `finish` running work, and end. A second signal ends at once.

    If `bound` was handed over, clients first leave with an answer each: a new connection then waits for the next
    process. `answers` bounds what all readers leave unread. `probes` are paths that are always answered.
    """
    connections.lower_limit(_raise_descriptor_limit() // 2)  # the rest is for files and outgoing connections
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # clients could fill the log with bad requests
    config = uvicorn.Config(
        application,
        http=partial(
            HttpProtocol,
            queue=AnswerQueue(asyncio.get_running_loop()),
            connections=connections,
            answers=answers,
            probes=probes,
        ),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=int(CLOSE_TIME) + 1,
    )
    listener = HttpServer(config)
    first, second = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hear() -> None:
        (second if first.is_set() else first).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hear)
    serving = loop.create_task(listener.serve([listening]))
    if await _wait_first(serving, first.wait()):
        for server in getattr(listener, "servers", ()):
            server.close()
        if is_handed:
            await _close_connections(listener, second)
        finishing = loop.create_task(finish())
        if await _wait_first(finishing, second.wait()):
            finishing.cancel()
        listener.stopping.set()
        loop.call_later(CLOSE_TIME, _abort, listener)  # a reader that takes nothing
        if await _wait_first(serving, second.wait()):
            listener.force_exit = True
            _abort(listener)
    await serving


async def _close_connections(listener: HttpServer, second: asyncio.Event) -> None:
    """Answer requests on the open connections and close each after its answer; idle ones close a little later. Closing
    a connection loses a request on its way, and many clients do not retry."""
    for connection in list(listener.server_state.connections):
        assert isinstance(connection, HttpProtocol)
        connection.close_after_answer()
    if listener.server_state.connections:
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_TIME):
                await second.wait()
    for connection in list(listener.server_state.connections):
        connection.shutdown()


def _abort(listener: HttpServer) -> None:
    for connection in list(listener.server_state.connections):
        connection.transport.abort()


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


async def _wait_first(work: "asyncio.Task[None]", call: Coroutine[Any, Any, Any]) -> bool:
    """Wait until `work` is done, or `call` returns: then True. An error of `work` is raised."""
    calling = asyncio.get_running_loop().create_task(call)
    await asyncio.wait((work, calling), return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        calling.cancel()
        work.result()
        return False
    return True


async def _refuse(_scope: Scope, _receive: Receive, send: Send) -> None:
    await refuse(send, 503, "too many connections", [(b"retry-after", b"5")])


def _raise_descriptor_limit() -> int:
    """Raise the descriptor limit, usually 1,024, since each connection is a descriptor. Return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MAX_CONNECTIONS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most
