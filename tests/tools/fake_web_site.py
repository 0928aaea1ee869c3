"""A web site for tests: plain HTTP (or HTTPS) on a free loopback port, whose pages are functions of the request."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Answer = bytes | tuple[int, Mapping[str, str], bytes] | Callable[["Request"], Awaitable[None]]


@dataclass
class Request:
    target: str
    headers: dict[str, str]
    writer: asyncio.StreamWriter
    body: bytes = b""
    reader: asyncio.StreamReader | None = None

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    async def send(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        lines = [f"HTTP/1.1 {status} x", *(f"{name}: {value}" for name, value in headers.items())]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await self.writer.drain()


@dataclass
class Site:
    """`pages`: path → HTML bytes, or (status, headers, body), or a coroutine function that writes freely."""

    pages: dict[str, Answer] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    scheme: str = "http"

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                lines = (line.partition(": ") for line in head[1:] if line)
                headers = {name.lower(): value for name, _, value in lines}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                request = Request(head[0].split(" ")[1], headers, writer, body, reader)
                self.requests.append(request)
                if not await self._answer(request):
                    break
        writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()

    async def _answer(self, request: Request) -> bool:
        answer = self.pages.get(request.path, (404, {"content-type": "text/plain"}, b"no such page"))
        if callable(answer):
            await answer(request)
            return False
        if isinstance(answer, bytes):
            answer = (200, {"content-type": "text/html; charset=utf-8"}, answer)
        status, headers, body = answer
        await request.send(status, {"content-length": str(len(body)), **headers}, body)
        return True


async def begin_wait_closed(server: asyncio.Server) -> "asyncio.Task[None]":
    """Return a wait for the end of all connections, also of those within TLS's handshake. 3.11 waits only if it began
    before `close`: make it `server.wait_closed()` with requires-python >= 3.12."""
    waiting = asyncio.ensure_future(server.wait_closed())
    await asyncio.sleep(0)
    return waiting


@contextlib.asynccontextmanager
async def site(pages: Mapping[str, Answer] | None = None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    place = Site(dict(pages or {}), scheme="https" if tls else "http")
    tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
    refused: list[asyncio.StreamWriter] = []
    ending = asyncio.Event()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if ending.is_set():
            writer.transport.abort()
            refused.append(writer)
            return
        task = asyncio.ensure_future(place.serve(reader, writer))
        tasks[task] = writer
        task.add_done_callback(lambda _: tasks.pop(task))

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    place.port = server.sockets[0].getsockname()[1]
    closing_all = await begin_wait_closed(server)
    try:
        yield place
    finally:
        for _ in range(3):  # a connection that is just accepted takes as many turns until it counts
            await asyncio.sleep(0)
        server.close()
        ending.set()
        writers = list(tasks.values())
        for task, writer in list(tasks.items()):
            task.cancel()
            writer.transport.abort()  # one that has not begun closes nothing
        await asyncio.gather(*tasks, return_exceptions=True)
        await closing_all
        closing = [writer.wait_closed() for writer in (*writers, *refused)]  # the loop does it, a turn later
        await asyncio.gather(*closing, return_exceptions=True)


@contextlib.asynccontextmanager
async def tcp_server(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve connections freely; give the port. At the end they are closed, also those that come late."""
    tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
    writers: list[asyncio.StreamWriter] = []
    ending = asyncio.Event()

    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await serve(reader, writer)

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if ending.is_set():
            writer.transport.abort()
        else:
            tasks[asyncio.ensure_future(work(reader, writer))] = writer

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    closing = await begin_wait_closed(server)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        for _ in range(3):  # a connection that is just accepted takes as many turns until it counts
            await asyncio.sleep(0)
        server.close()
        ending.set()
        for task, writer in tasks.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        await closing
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


def redirect(location: str, status: int = 302) -> tuple[int, Mapping[str, str], bytes]:
    return status, {"location": location}, b"elsewhere"


async def gone(request: Request) -> None:
    """Send nothing, and return when the other side has closed the connection."""
    assert request.reader is not None
    await request.reader.read()


async def never(request: Request) -> None:
    """Send nothing until the other side closes."""
    await asyncio.Event().wait()
