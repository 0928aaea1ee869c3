"""Connect sandboxed commands to the public network, by an HTTP proxy whose socket listens inside the sandbox.

A socket keeps the network namespace that it was made in. A program of ours makes one inside the sandbox and passes it
out, so it accepts connections from inside and is served here. Only commands inside can connect, so the proxy needs no
password. Hosts are resolved here, vetted and pinned like those of the web tools.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from toolgate.tools.api.concurrency.rate_limiter import ByteRateLimiter
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.outbound.address_policy import AddressPolicy
from toolgate.tools.api.outbound.dns import Resolver
from toolgate.tools.api.outbound.errors import AddressRefusedError, Resolve
from toolgate.tools.workspace.sandbox.egress.connect import CHUNK, Streams, open_connection
from toolgate.tools.workspace.sandbox.egress.host_rules import HostRules
from toolgate.tools.workspace.sandbox.egress.shared_limits import SharedProxyLimits

if TYPE_CHECKING:
    from toolgate.tools.workspace.sandbox.egress.http import ProxyConnection, ProxyRequest

logger = logging.getLogger(__name__)

HEAD_TIME = 5.0  # seconds to send a request
IDLE = 900.0  # seconds without a byte from either side, of a tunnel too
LOOKUP = 15.0  # seconds
LOOKUPS = 16  # at once; those beyond wait
CONNECTION = 2**17  # bytes that a connection counts as, for its setup: 256 a second
EVENT = 2**12  # extra bytes that a header field or a body piece counts as: 8,192 a second
MAX_HEAD = 2**15  # bytes, what most servers accept
PARTING = 1.0  # seconds to read on after a refusal, so that a client that still sends sees it
REST = 0.5  # seconds until the next try when no connection can be accepted
PORTS = {25: "port 25 is for mail between servers: sandboxes may not use it, to prevent spam"}
USAGE = "send the proxy http://host/path, or CONNECT host:port"
RULE = "with --sandbox-network public, commands reach public addresses only"
GONE = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)  # the listener is closed
MAX_TOLD = 50  # refusals of one program that are told: a hostile one asks for any number of hosts
MAX_READ = 2**20  # bytes; more than a StreamReader holds, so that a read empties it
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
HERE = "localhost,127.0.0.1,::1"  # reached directly inside the sandbox


class SandboxProxy:
    """The proxy behind one listening socket, which it owns. `shared` holds the limits of all proxies."""

    def __init__(
        self,
        listener: socket.socket,
        allowed: AddressPolicy,
        resolve: Resolve | None = None,
        shared: SharedProxyLimits | None = None,
    ) -> None:
        self._listener = listener
        self._allowed = allowed
        self._resolve = resolve or Resolver(LOOKUPS).addresses
        self._shared = shared or SharedProxyLimits()
        self._rate: ByteRateLimiter = self._shared.join()
        self._lookups = asyncio.Semaphore(LOOKUPS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._rules: HostRules | None = None
        self._on_refusal: Callable[[str], None] = _ignore
        self._refused: set[str] = set()  # what `on_refusal` was told

    def restrict(self, rules: HostRules, on_refusal: Callable[[str], None]) -> None:
        """Let connections reach the hosts of `rules` alone. `on_refusal` gets the sentence of each refusal, once."""
        self._rules = rules
        self._allowed = rules.extend_policy(self._allowed)
        self._on_refusal = on_refusal

    @property
    def connections(self) -> int:
        return len(self._tasks)

    def open(self) -> None:
        """Start accepting connections, on the running loop."""
        self._listener.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def close(self) -> None:
        """End every connection at once, and stop listening."""
        tasks = [*self._tasks, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._shared.leave(self._rate)
        self._listener.close()

    @staticmethod
    def environment(port: int) -> dict[str, str]:
        """Return the variables that make a command use the proxy, which listens on 127.0.0.1 at `port`."""
        proxy = f"http://127.0.0.1:{port}"
        return {**dict.fromkeys(PROXIES, proxy), "no_proxy": HERE, "NO_PROXY": HERE}

    async def _accept(self) -> None:
        while True:
            try:
                client, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            except OSError as error:
                if error.errno in GONE:
                    logger.warning("the proxy of a sandbox stopped: %s", error.strerror)
                    return
                if error.errno != errno.ECONNABORTED:  # probably out of descriptors: an immediate retry would spin
                    logger.warning("cannot accept a connection from a sandbox: %s", error.strerror)
                    await asyncio.sleep(REST)
                continue
            await self._admit(client)

    async def _admit(self, client: socket.socket) -> None:
        """Serve the connection once there is room; until then, others wait in the backlog."""
        try:
            await self._shared.enter(self._tasks)
        except BaseException:
            client.close()
            raise
        task = asyncio.get_running_loop().create_task(self._serve(client))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._on_connection_end(task, client))
        await self._rate.wait_until(self._rate.charge(CONNECTION))

    def _on_connection_end(self, task: asyncio.Task[None], client: socket.socket) -> None:
        self._tasks.discard(task)
        client.close()  # for a task cancelled before it started; else already closed
        self._shared.exit()

    async def _serve(self, client: socket.socket) -> None:
        from toolgate.tools.workspace.sandbox.egress.http import BadProxyRequestError, ProxyConnection  # start-up: h11

        reader, writer = await _streams(client)
        try:
            async with asyncio.timeout(IDLE) as idle:
                client_reader = RateLimitedReader(reader, writer, self._rate, lambda: _extend_idle(idle))
                connection = ProxyConnection(client_reader, writer, MAX_HEAD, self._on_events)
                try:
                    async with asyncio.timeout(HEAD_TIME):
                        request = await connection.read_request()
                    await self._forward(connection, request, idle)
                except BadProxyRequestError:
                    await connection.refuse(400, USAGE)
                await _close_gracefully(client_reader, writer)
        except (OSError, EOFError):
            pass  # also TimeoutError. Any answer was sent: the rest is a closed connection
        finally:
            writer.transport.abort()  # everything was sent: each write drains

    async def _forward(self, connection: "ProxyConnection", request: "ProxyRequest", idle: asyncio.Timeout) -> None:
        try:
            reader, writer = await self._connect(request)
        except ToolError as error:
            is_rule = isinstance(error, AddressRefusedError)
            await connection.refuse(403 if is_rule else 502, self._note_refusal(str(error)) if is_rule else str(error))
            return
        server_reader = RateLimitedReader(reader, writer, self._rate, lambda: _extend_idle(idle))
        try:
            if request.is_tunnel:
                await connection.tunnel(server_reader, writer)
            else:
                await connection.forward(request, server_reader, writer)
        finally:
            writer.transport.abort()

    def _note_refusal(self, text: str) -> str:
        """Return what the client is told."""
        if self._rules is None:
            return f"{text} ({RULE})"
        if text not in self._refused and len(self._refused) < MAX_TOLD:
            self._refused.add(text)
            self._on_refusal(text)
        return text

    async def _connect(self, request: "ProxyRequest") -> Streams:
        if request.port in PORTS:
            raise AddressRefusedError(PORTS[request.port])
        if self._rules is not None:
            self._rules.check_host(request.host)
        reader, writer = await open_connection(request.host, request.port, self._allowed, self._addresses)
        writer.transport.set_write_buffer_limits(0)
        return reader, writer

    async def _on_events(self, events: int) -> None:
        await self._rate.wait_until(self._rate.charge(events * EVENT))

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        async with asyncio.timeout(LOOKUP), self._lookups:
            return await self._resolve(host, port)


class RateLimitedReader:
    """The reading side of a connection. `on_data` is called at each read with data."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        rate: ByteRateLimiter,
        on_data: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._transport: asyncio.Transport = writer.transport  # type: ignore[assignment]  # reads too, it is a socket's
        self._rate = rate
        self._moved = on_data
        self._due = 0.0
        self._unread = b""
        self._halt()

    async def read(self, most: int) -> bytes:
        """Return up to `most` bytes, b"" at the end. Raises OSError."""
        await self._rate.wait_until(self._due)
        data = self._unread or await self._read_available()
        await self._rate.wait_turn()
        piece, self._unread = data[:most], data[most:]
        self._due = self._rate.charge(len(piece))
        self._moved()
        return piece

    async def _read_available(self) -> bytes:
        """Read from the kernel only on demand: a reader with its own buffer would take single bytes as they arrive."""
        with contextlib.suppress(RuntimeError):  # the connection closed; the read reports it
            self._transport.resume_reading()
        try:
            return await self._reader.read(MAX_READ)
        finally:
            self._halt()

    def _halt(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._transport.pause_reading()


async def _streams(client: socket.socket) -> Streams:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(CHUNK)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, client)
    transport.set_write_buffer_limits(0)  # a drain returns only when all is sent
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _close_gracefully(reader: RateLimitedReader, writer: asyncio.StreamWriter) -> None:
    """Send the end, and read on briefly: an immediate close could take the answer away from the client."""
    await writer.drain()
    if writer.is_closing():
        return
    writer.write_eof()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PARTING):
            while await reader.read(CHUNK):
                pass


def _ignore(_text: str) -> None:
    """Tell nobody."""


def _extend_idle(idle: asyncio.Timeout) -> None:
    now = asyncio.get_running_loop().time()
    if not idle.expired() and (idle.when() or 0.0) < now + IDLE * 0.9:  # no new timer for each read
        idle.reschedule(now + IDLE)
