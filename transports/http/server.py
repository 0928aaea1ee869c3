"""Listen for HTTP with uvicorn, and shut down in order."""

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import uvicorn

from toolgate.transports.http.wire.connection import HttpConnection
from toolgate.transports.http.wire.connections import MAX_CONNECTIONS, Connections
from toolgate.transports.http.wire.listener import Listener

CLOSE_TIME = 2.0  # seconds for the last bytes to be sent
BACKLOG = 2_048  # connections that wait in the kernel's queue


class HttpServer(uvicorn.Server):
    """uvicorn's server without its signal handlers and its clock: `stop` ends it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def main_loop(self) -> None:
        await self.stopping.wait()


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound


async def serve(
    listener: Listener,
    listening: socket.socket,
    finish: Callable[[], Coroutine[Any, Any, None]],
    *,
    begin_drain: Callable[[], None] = lambda: None,
    drain_time: float = 0.0,
    is_handed: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT; then accept no more, `finish` running work, and end. A second signal ends at once.

    After SIGTERM, requests on open connections are served for `drain_time` seconds, or until none is open. Each
    connection closes after its next answer. If `listening` was handed over, a new connection waits for the next
    process.
    """
    connections = listener.connections
    connections.lower_limit(_raise_descriptor_limit() // 2)  # the rest is for files and outgoing connections
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # its messages name no transport
    server = _create_server(listener)
    first, second = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hear(time: float) -> None:
        nonlocal drain_time
        if first.is_set():
            second.set()
        else:
            drain_time = time
            first.set()

    loop.add_signal_handler(signal.SIGTERM, hear, drain_time)
    loop.add_signal_handler(signal.SIGINT, hear, 0.0)  # from a terminal, where nobody wants to wait
    serving = loop.create_task(server.serve([listening]))
    if await _wait_first(serving, first.wait()):
        if drain_time:
            begin_drain()
            connections.is_draining = True
            for each in list(server.server_state.connections):
                assert isinstance(each, HttpConnection)
                each.close_after_answer()
        accepted = _accept_waiting(listening) if drain_time and not is_handed else []
        for accepting in getattr(server, "servers", ()):
            accepting.close()
        protocol = partial(HttpConnection, listener, server_state=server.server_state)
        for connection in accepted:
            await loop.connect_accepted_socket(protocol, connection)
        if drain_time:
            await _drain(server, connections, second, drain_time)
        finishing = loop.create_task(finish())
        if await _wait_first(finishing, second.wait()):
            finishing.cancel()
        server.stopping.set()
        loop.call_later(CLOSE_TIME, _abort, server)  # a reader that takes nothing
        if await _wait_first(serving, second.wait()):
            server.force_exit = True
            _abort(server)
    await serving


def _create_server(listener: Listener) -> HttpServer:
    config = uvicorn.Config(
        _no_application,
        interface="asgi3",
        http=partial(HttpConnection, listener),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=int(CLOSE_TIME) + 1,
    )
    return HttpServer(config)


def _accept_waiting(listening: socket.socket) -> list[socket.socket]:
    """Return the connections in the kernel's queue, which would be reset when the port closes. The caller closes it in
    the same turn of the event loop: in another one more would come. A flood of new ones does not delay the end.
    """
    accepted: list[socket.socket] = []
    with suppress(OSError):  # BlockingIOError: there are no more
        for _ in range(BACKLOG):
            connection, _address = listening.accept()
            connection.setblocking(False)
            accepted.append(connection)
    return accepted


async def _drain(server: HttpServer, connections: Connections, second: asyncio.Event, seconds: float) -> None:
    """Serve open connections for at most so many seconds, then close the idle ones. Closing a connection loses a
    request on its way, and many clients do not retry."""
    await asyncio.sleep(0)  # accepted connections are counted
    loop = asyncio.get_running_loop()
    ends = [loop.create_task(connections.wait_closed()), loop.create_task(second.wait())]
    await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for end in ends:
        end.cancel()
    for connection in list(server.server_state.connections):
        connection.shutdown()


def _abort(server: HttpServer) -> None:
    for connection in list(server.server_state.connections):
        connection.abort()  # type: ignore[union-attr]  # all are HttpConnections


async def _no_application(_scope: Any, _receive: Any, _send: Any) -> None:
    """uvicorn asks for an application, but the connections call the listener's handler."""


async def _wait_first(work: "asyncio.Task[None]", call: Coroutine[Any, Any, Any]) -> bool:
    """Wait until `work` is done, or `call` returns: then True. An error of `work` is raised."""
    calling = asyncio.get_running_loop().create_task(call)
    await asyncio.wait((work, calling), return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        calling.cancel()
        work.result()
        return False
    return True


def _raise_descriptor_limit() -> int:
    """Raise the descriptor limit, usually 1,024, since each connection is a descriptor. Return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MAX_CONNECTIONS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most
