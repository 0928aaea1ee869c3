"""Listen for HTTP with uvicorn, and shut down in order."""

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Callable, Collection, Coroutine, Generator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import uvicorn

from toolgate.server.budget import Budget
from toolgate.transports.http.answer_queue import AnswerQueue
from toolgate.transports.http.connections import MAX_CONNECTIONS, Connections
from toolgate.transports.http.protocol import HttpProtocol

log = logging.getLogger("toolgate.http")

KEEP_ALIVE = 130  # seconds an idle connection is kept: longer than proxies keep it (nginx 60, Traefik 90, Caddy 120)
CLOSE_TIME = 2.0  # seconds for the last bytes to be sent
LEAVE_TIME = 0.5  # seconds for clients to disconnect after an answer: requests may be arriving


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
