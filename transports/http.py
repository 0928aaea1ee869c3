"""Listens for HTTP: uvicorn, with limits of our own on headers and connections, and an end that is ours to order.

Knows sockets and uvicorn; knows nothing of what is served.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger("toolgate.http")

MAX_HEADERS = 64 * 1024  # bytes of one request's head: tokens and cookies are a few kilobytes
HEADER_TIME = 15.0  # seconds for a whole head
MAX_CONNECTIONS = 4_096  # at once; more are answered 503
KEEP_ALIVE = 75  # seconds an idle connection is kept: longer than the usual proxy's 60
CLOSE_TIME = 2.0  # seconds for the last bytes to go out


class Protocol(HttpToolsProtocol):
    """Bounds what a client may send before its request is understood: bytes and time."""

    _head = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._got_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deadline is not None:
            self._head += len(data)
            if self._head > MAX_HEADERS + 64 * 1024:  # a head and as much of a body as one read brings
                self.send_400_response("The head of the request is too large.")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        if self._deadline is None:
            self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        too_large = sum(len(name) + len(value) for name, value in self.headers) > MAX_HEADERS
        self._got_head()
        if too_large:
            self.send_400_response("The head of the request is too large.")
            return
        super().on_headers_complete()

    def _expect_head(self) -> None:
        self._head = 0
        self._deadline = self.loop.call_later(HEADER_TIME, self._too_slow)

    def _got_head(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()


class Listener(uvicorn.Server):
    """uvicorn's server without its own idea of signals: `stop` is what ends it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def main_loop(self) -> None:
        """Wake once a second, for the Date header, until told to stop."""
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
    """A listening socket. Raises OSError."""
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


async def serve(application: Any, bound: socket.socket, finish: Callable[[], Awaitable[None]]) -> None:
    """Serve until SIGTERM or SIGINT; then accept no more, `finish` what runs, and end. A second one ends at once."""
    config = uvicorn.Config(
        application,
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=int(CLOSE_TIME),
    )
    listener = Listener(config)
    signalled = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hear() -> None:
        if signalled.is_set():
            listener.force_exit = True
        signalled.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hear)
    serving = loop.create_task(listener.serve([bound]))
    ending = loop.create_task(signalled.wait())
    await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
    for server in getattr(listener, "servers", ()):
        server.close()
    await finish()
    listener.stopping.set()
    await serving
    ending.cancel()
