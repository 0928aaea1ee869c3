"""A web site for tests: plain HTTP (or HTTPS) on a free loopback port, whose pages are functions of the request."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

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
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
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


@contextlib.asynccontextmanager
async def site(pages: Mapping[str, Answer] | None = None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    place = Site(dict(pages or {}), scheme="https" if tls else "http")
    tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
    ending = asyncio.Event()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if ending.is_set():
            writer.transport.abort()
            return
        task = asyncio.ensure_future(place.serve(reader, writer))
        tasks[task] = writer
        task.add_done_callback(lambda _: tasks.pop(task))

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    place.port = server.sockets[0].getsockname()[1]
    try:
        yield place
    finally:
        server.close()
        ending.set()
        for task, writer in list(tasks.items()):
            task.cancel()
            writer.transport.abort()  # one that has not begun closes nothing
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


def redirect(location: str, status: int = 302) -> tuple[int, Mapping[str, str], bytes]:
    return status, {"location": location}, b"elsewhere"


async def gone(request: Request) -> None:
    """Send nothing, and return when the other side has closed the connection."""
    assert request.reader is not None
    await request.reader.read()


async def never(request: Request) -> None:
    """Send nothing until the other side closes."""
    await asyncio.Event().wait()
