"""Vet and pin every connection of the browser, by a proxy on loopback that is its only way to the network.

Chromium is told to use it for everything, loopback too, and to resolve nothing by itself. So every redirect, frame,
worker, WebSocket and prefetch of a page comes here as a request for a host and a port, and meets the check that the
plain fetch meets (tools/web/vetted_client.py): the name is resolved here, each time anew, every answer is checked, and
the connection goes to an address that was. Each page has a name and a password of its own; who has none is refused, and
that includes Chromium's own requests in the background.
"""

import asyncio
import base64
import contextlib
import secrets
from collections.abc import Generator

from toolgate.tools.api.errors import ToolError
from toolgate.tools.egress.connect import CHUNK, open_connection
from toolgate.tools.egress.http import BadProxyRequestError, ProxyConnection, ProxyRequest
from toolgate.tools.web.address_policy import AddressPolicy
from toolgate.tools.web.dns import Resolver
from toolgate.tools.web.page import AddressRefusedError, PageUnreachableError, Resolve

HEAD_TIME = 5.0  # seconds to say what is wanted: Chromium opens some connections before it needs them
MAX_BYTES = 64 * 2**20  # of one page and all that it loads, as they come: compressed
MAX_REQUESTS = 1_000  # connections asked for by one page; heavy ones make 300
MAX_OPEN = 2_048  # connections of all pages, and of other programs on this machine that try the port

Address = tuple[str, int]  # host and port


class Ticket:
    """What one page may use of the proxy, and what became of it.

    `failed`: why each host and port that was not reached the last time was not. `limit_reached`: the limit, as in
    "64 MiB", "" while none was; nothing passes from then on.
    """

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
        """The connection ends with the ticket."""
        self._open.add(writer)
        try:
            if self.limit_reached:
                raise PageUnreachableError(f"the page has reached its limit of {self.limit_reached}")
            yield
        finally:
            self._open.discard(writer)

    def end(self) -> None:
        """Let nothing pass any more."""
        self._close(self.limit_reached or "time")

    def _close(self, limit: str) -> None:
        self.limit_reached = self.limit_reached or limit
        for writer in list(self._open):
            writer.transport.abort()


class BrowserProxy:
    """The proxy. Opened once, for all pages of a server."""

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
        """A page's ticket; its connections end when the block does."""
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
            pass  # its failures have been answered where there was a question; the rest is the end of a connection
        finally:
            with contextlib.suppress(OSError):
                writer.close()

    async def _read_request(self, connection: ProxyConnection) -> tuple[ProxyRequest, Ticket]:
        """Return the next request and the ticket of its page. Without a ticket the answer is 407."""
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
