"""Vet and pin every connection of the browser, by a proxy on loopback that is its only way to the network.

Chromium sends everything through it, loopback too, and resolves no name itself. So every redirect, frame, worker,
WebSocket and prefetch arrives here as a request for a host and a port. It gets the plain fetch's check
(tools/api/outbound/vetted_client.py): each connection resolves the name again, checks every address, and uses a checked
one. Each page has its own name and password. A request without them is refused, which includes the requests that
Chromium makes for itself.
"""

import asyncio
import base64
import contextlib
import secrets
from collections.abc import Generator

from toolgate.tools.api.errors import ToolError, drop_tracebacks
from toolgate.tools.api.outbound.address_policy import AddressPolicy
from toolgate.tools.api.outbound.dns import Resolver
from toolgate.tools.api.outbound.errors import AddressRefusedError, PageUnreachableError, Resolve
from toolgate.tools.workspace.sandbox.egress.connect import CHUNK, open_connection
from toolgate.tools.workspace.sandbox.egress.http import BadProxyRequestError, ProxyConnection, ProxyRequest

HEAD_TIME = 5.0  # seconds to send a request: Chromium opens some connections early
MAX_BYTES = 64 * 2**20  # of one page and all that it loads, compressed
MAX_REQUESTS = 1_000  # connections of one page; heavy pages make 300
MAX_OPEN = 2_048  # connections of all pages, and of other local programs that try the port

Address = tuple[str, int]  # host and port


class Ticket:
    """The quota and the failures of one page at the proxy. `failed`: host and port → why the last attempt failed.
    `limit_reached`: the limit, as in "64 MiB", or "" if none. Once it is set, nothing passes."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        self.password = secrets.token_hex(16)
        self.failed: dict[Address, ToolError] = {}
        self.limit_reached = ""
        self._bytes = 0
        self._requests = 0
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def credentials(self) -> str:
        return "Basic " + base64.b64encode(f"{self.name}:{self.password}".encode()).decode()

    @property
    def refusals(self) -> list[ToolError]:
        return [error for error in self.failed.values() if isinstance(error, AddressRefusedError)]

    def count_request(self) -> None:
        self._requests += 1
        if self._requests > MAX_REQUESTS:
            self._close(f"{MAX_REQUESTS:,} connections")

    def count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > MAX_BYTES:
            self._close(f"{MAX_BYTES // 2**20} MiB")

    @contextlib.contextmanager
    def track(self, writer: asyncio.StreamWriter) -> Generator[None, None, None]:
        """Close the connection when the ticket ends."""
        self._open.add(writer)
        try:
            if self.limit_reached:
                raise PageUnreachableError(f"the page has reached its limit of {self.limit_reached}")
            yield
        finally:
            self._open.discard(writer)

    def end(self) -> None:
        """Let nothing pass from now on."""
        self._close(self.limit_reached or "time")

    def _close(self, limit: str) -> None:
        self.limit_reached = self.limit_reached or limit
        for writer in list(self._open):
            writer.transport.abort()


class BrowserProxy:
    """The proxy, opened once for all pages of a server."""

    def __init__(self, allowed: AddressPolicy, resolve: Resolve | None = None) -> None:
        self._allowed = allowed
        self._resolve = resolve or Resolver().addresses
        self._tickets: dict[str, Ticket] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        return len(self._tasks)

    async def open(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0, limit=CHUNK)

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for ticket in self._tickets.values():
            ticket.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextlib.contextmanager
    def issue_ticket(self) -> Generator[Ticket, None, None]:
        """Yield a page's ticket; its connections end with the block."""
        ticket = Ticket()
        self._tickets[ticket.credentials] = ticket
        try:
            yield ticket
        finally:
            del self._tickets[ticket.credentials]
            ticket.end()

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MAX_OPEN:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            connection = ProxyConnection(reader, writer)
            async with asyncio.timeout(HEAD_TIME):
                request, ticket = await self._read_request(connection)
            with ticket.track(writer):
                await self._forward(connection, request, ticket)
            await writer.drain()
        except (BadProxyRequestError, ToolError, OSError, TimeoutError, EOFError):
            pass  # a failure was already answered, or the connection just ended
        finally:
            with contextlib.suppress(OSError):
                writer.close()

    async def _read_request(self, connection: ProxyConnection) -> tuple[ProxyRequest, Ticket]:
        """Return the next request and the ticket of its page. A request without a ticket gets a 407."""
        while True:
            try:
                request = await connection.read_request()
            except BadProxyRequestError:
                await connection.refuse(502)
                raise
            ticket = self._tickets.get(request.credentials)
            if ticket is not None:
                return request, ticket
            await connection.refuse(407)

    async def _forward(self, connection: ProxyConnection, request: ProxyRequest, ticket: Ticket) -> None:
        place = (request.host, request.port)
        try:
            ticket.count_request()
            reader, writer = await open_connection(*place, self._allowed, self._resolve)
        except ToolError as error:
            drop_tracebacks(error)  # they hold this frame, which holds the ticket
            ticket.failed[place] = error
            await connection.refuse(403 if isinstance(error, AddressRefusedError) else 502)
            return
        ticket.failed.pop(place, None)
        try:
            with ticket.track(writer):
                if request.is_tunnel:
                    await connection.tunnel(reader, writer, ticket.count)
                else:
                    await connection.forward(request, reader, writer, ticket.count)
        finally:
            writer.transport.abort()
