"""The small client's way over HTTP: a request a connection, by hand, since nothing else here needs an HTTP client.
Speaks HTTP+SSE and both eras of Streamable HTTP. Knows nothing of the server's inside.
"""

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

import msgspec

from toolgate.server.cli.mcp_client.client import (
    CLIENT,
    LINE,
    PATIENCE,
    SERVER,
    Client,
    Fault,
    Note,
    Question,
    ended,
    hello,
)
from toolgate.server.config.types import is_loopback
from toolgate.server.protocol.errors import UsageError
from toolgate.server.protocol.request_meta import CAPABILITIES, VERSION
from toolgate.server.protocol.request_meta import CLIENT as CLIENT_INFO
from toolgate.server.protocol.revisions import NEWEST_WITH_SESSION, STATELESS

CONNECT = 10.0  # seconds for a connection
GOODBYE = 1.0  # seconds for a connection to end
PIECE = 2**20  # bytes that are read at once, at most
Greeted = tuple[Client, dict[str, Any]]  # a client, and what the server said to it first
Opened = AsyncGenerator[Greeted, None]


class Unreachable(Fault):
    """Nobody answers at the URL."""


class SignIn(Fault):
    """The server wants an access token, or another one; `told` is what it says."""

    def __init__(self, told: str) -> None:
        super().__init__(f"HTTP 401 {told}: put an access token that is good there into the variable TOOLGATE_TOKEN")


@dataclass(frozen=True, slots=True)
class Response:
    """The head of an answer, and its body as it comes."""

    status: int
    headers: Mapping[str, str]
    body: AsyncIterator[bytes]
    version: str = "HTTP/1.1"

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")


class Streamable:
    """The wire of one Streamable HTTP client: a POST a message. `revision` decides the era; `token` is the access token
    or ""."""

    def __init__(self, url: str, revision: str, token: str, note: Note | None, question: Question | None) -> None:
        self._url = url
        self._headers = {"MCP-Protocol-Version": revision, **authorized(token, url)}
        self._is_stateless = revision in STATELESS
        capabilities: dict[str, Any] = {"elicitation": {}} if question is not None else {}
        self._envelope: dict[str, Any] = {VERSION: revision, CAPABILITIES: capabilities, CLIENT_INFO: CLIENT}
        self._tasks: set[asyncio.Task[None]] = set()
        self.client = Client(self._send, note, question)

    def _send(self, message: dict[str, Any]) -> None:
        task = asyncio.get_running_loop().create_task(self.post(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def post(self, message: dict[str, Any]) -> None:
        """Send a message and hand on what comes for it."""
        headers = self._headers
        if self._is_stateless and "method" in message:
            params = message.get("params", {})
            message = {**message, "params": {**params, "_meta": {**params.get("_meta", {}), **self._envelope}}}
            headers = {**headers, "Mcp-Method": message["method"], "Mcp-Name": params.get("name", "")}
        fault: Fault = Fault("the answer ended before it was complete")
        try:
            async with exchange("POST", self._url, headers, msgspec.json.encode(message)) as response:
                id = response.headers.get("mcp-session-id")
                if id is not None:
                    self._headers = {**self._headers, "Mcp-Session-Id": id}
                await self._take(response)
        except Fault as error:
            fault = error
        finally:
            if "method" in message and "id" in message:
                self.client.give_up(fault, message["id"])

    async def _take(self, response: Response) -> None:
        if response.is_stream:
            async for name, data in events(response.body):
                if name == "message" and data:
                    self.client.take(msgspec.json.decode(data))
            return
        body = b"".join([part async for part in response.body])
        if response.headers.get("content-type", "").startswith("application/json"):
            message = msgspec.json.decode(body)
            if "error" in message and message.get("id") is None:
                raise Fault(f"{message['error']['code']} {message['error']['message']}")
            self.client.take(message)
        elif response.status == 401:
            raise SignIn(body.decode(errors="replace").strip()[:500])
        elif response.status >= 300:
            raise Fault(f"HTTP {response.status} {body.decode(errors='replace').strip()[:500]}")

    async def close(self) -> None:
        """End the session, where there is one, and what is still under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if "Mcp-Session-Id" in self._headers:
            with contextlib.suppress(Fault):
                async with exchange("DELETE", self._url, self._headers, b""):
                    pass


@contextlib.asynccontextmanager
async def connected(
    url: str,
    revision: str | None = None,
    *,
    token: str = "",
    note: Note | None = None,
    question: Question | None = None,
) -> Opened:
    """A client of the Streamable HTTP server at `url`, and its answer to initialize or server/discover. Without a
    `revision`, the stateless era is tried first. `token` is the access token to show. Raises UsageError, Fault."""
    checked(url)
    newest = next(iter(STATELESS))
    wire = Streamable(url, revision or newest, token, note, question)
    try:
        try:
            answer = await _greet(wire, revision or newest, question)
        except (Unreachable, SignIn):
            raise
        except Fault:
            if revision is not None:
                raise
            wire = Streamable(url, NEWEST_WITH_SESSION.name, token, note, question)
            answer = await _greet(wire, NEWEST_WITH_SESSION.name, question)
        yield wire.client, answer
    finally:
        await wire.close()


async def _greet(wire: Streamable, revision: str, question: Question | None) -> dict[str, Any]:
    if revision in STATELESS:
        known: dict[str, Any] = await wire.client.request("server/discover")
        return known
    answer: dict[str, Any] = await wire.client.request("initialize", hello(revision, asks=question is not None))
    await wire.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
    return answer


@contextlib.asynccontextmanager
async def listening(url: str, *, note: Note | None = None, question: Question | None = None) -> Opened:
    """A client of the HTTP+SSE server at `url`, and the initialize result."""
    revision = "2024-11-05"
    async with exchange("GET", url, {"Accept": "text/event-stream"}, b"") as response:
        stream = events(response.body)
        name, path = await anext(stream)
        if not response.is_stream or name != "endpoint":
            raise Fault(f"{url} is no HTTP+SSE server")
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        client = Client(queue.put_nowait, note, question)
        working = [
            asyncio.create_task(_write_all(queue, urljoin(url, path), client)),
            asyncio.create_task(_read_all(stream, client)),
        ]
        try:
            answer = await client.request("initialize", hello(revision, asks=question is not None))
            client.notify("notifications/initialized")
            yield client, answer
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)


async def _write_all(queue: asyncio.Queue[dict[str, Any]], url: str, client: Client) -> None:
    while True:
        message = await queue.get()
        try:
            async with exchange("POST", url, {}, msgspec.json.encode(message)) as response:
                if response.status != 202:
                    raise Fault(f"HTTP {response.status}")
        except Fault as fault:
            client.give_up(fault, message.get("id"))


async def _read_all(stream: AsyncIterator[tuple[str, str]], client: Client) -> None:
    try:
        async for name, data in stream:
            if name == "message":
                client.take(msgspec.json.decode(data))
    finally:
        client.give_up(Fault("the stream ended"))


@contextlib.asynccontextmanager
async def served(options: Sequence[str], environment: Mapping[str, str]) -> AsyncGenerator[str, None]:
    """A server of our own over HTTP, with both transports on a free port: its base URL."""
    own = [*options, "--sse", "--http", "--auth", "none", "--host", "127.0.0.1", "--port", "0"]
    process = await asyncio.create_subprocess_exec(
        *SERVER, *own, stderr=asyncio.subprocess.PIPE, limit=LINE, env=environment
    )
    assert process.stderr is not None
    passing: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(PATIENCE):
            base = await _address(process.stderr)
        passing = asyncio.create_task(_pass_on(process.stderr))
        yield base
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await ended(process)
        if passing is not None:
            await passing


async def _address(log: asyncio.StreamReader) -> str:
    """The base URL that the log tells; what else it says is passed on."""
    while line := await log.readline():
        found = re.search(rb"serving (http://\S+)/mcp", line)
        if found:
            return found[1].decode()
        sys.stderr.write(line.decode(errors="replace"))
    raise Fault("the server did not start")


async def _pass_on(log: asyncio.StreamReader) -> None:
    while line := await log.readline():
        sys.stderr.write(line.decode(errors="replace"))


# -- HTTP/1.1, RFC 9112: as much of it as one request a connection takes


@contextlib.asynccontextmanager
async def exchange(
    method: str, url: str, headers: Mapping[str, str], body: bytes, *, address: str | None = None
) -> AsyncGenerator[Response, None]:
    """One request and its answer; leaving hangs up. `address` is where to connect, if not to what the host's name says
    now. Raises Fault, Unreachable."""
    parts = checked(url)
    try:
        async with asyncio.timeout(CONNECT):
            port = parts.port or (443 if parts.scheme == "https" else 80)
            secure: dict[str, Any] = {"ssl": True, "server_hostname": parts.hostname} if parts.scheme == "https" else {}
            source, sink = await asyncio.open_connection(address or parts.hostname, port, limit=LINE, **secure)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error) or "no connection in time"
        raise Unreachable(f"{url}: {reason}") from None
    try:
        sink.write(_head(method, parts, headers, len(body)) + body)
        yield await _response(source)
    except (OSError, EOFError, ValueError, msgspec.DecodeError) as error:
        raise Fault(f"{url}: {error}") from error
    finally:
        await hang_up(sink)


async def hang_up(sink: asyncio.StreamWriter) -> None:
    """End a connection. Who does not answer TLS's goodbye is not waited for."""
    sink.close()
    try:
        with contextlib.suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(GOODBYE):
                await sink.wait_closed()
    finally:
        sink.transport.abort()


def checked(url: str) -> SplitResult:
    """The parts of an http or https URL. Raises UsageError."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and url.isascii():
            return parts
    except ValueError:
        pass
    raise UsageError(f"--url: {url!r} is no http or https URL")


def authorized(token: str, url: str) -> dict[str, str]:
    """The headers that carry the access token `token` to `url`; none without one. Raises UsageError where others could
    read it on the way."""
    if not token:
        return {}
    if not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError("TOOLGATE_TOKEN holds no access token")
    parts = checked(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise UsageError(
            f"--url: the token in TOOLGATE_TOKEN goes over https, or to this machine, and {url} is neither"
        )
    return {"Authorization": f"Bearer {token}"}


def _head(method: str, parts: SplitResult, headers: Mapping[str, str], length: int) -> bytes:
    told = {
        "Host": parts.netloc.rpartition("@")[2],
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "Content-Length": str(length),
        "Connection": "close",
        **headers,
    }
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = "".join(f"{name}: {value}\r\n" for name, value in told.items() if value)
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")


async def _response(source: asyncio.StreamReader) -> Response:
    head = (await source.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    version, status = first.split()[0], int(first.split()[1])
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return Response(status, headers, _chunks(source), version)
    length = headers.get("content-length")
    return Response(status, headers, _plain(source, int(length) if length else None), version)


async def _chunks(source: asyncio.StreamReader) -> AsyncGenerator[bytes, None]:
    while size := int((await source.readline()).partition(b";")[0], 16):
        async for part in _taken(source, size):
            yield part
        await source.readexactly(2)


async def _taken(source: asyncio.StreamReader, length: int) -> AsyncGenerator[bytes, None]:
    """So many bytes, as they come: a server that promises more than anybody wants is left when it is too much."""
    if length < 0:
        raise ValueError("a length below nothing")
    while length and (part := await source.read(min(length, PIECE))):
        length -= len(part)
        yield part
    if length:
        raise EOFError("the answer broke off")


async def _plain(source: asyncio.StreamReader, length: int | None) -> AsyncGenerator[bytes, None]:
    if length is not None:
        async for part in _taken(source, length):
            yield part
        return
    while data := await source.read(PIECE):
        yield data


async def events(body: AsyncIterator[bytes]) -> AsyncGenerator[tuple[str, str], None]:
    """Server-sent events: name and data. Source: HTML Living Standard, "Server-sent events"."""
    rest, name, data = b"", "message", list[str]()
    async for part in body:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            field, _, value = line.rstrip(b"\r").decode(errors="replace").partition(":")
            value = value.removeprefix(" ")
            if field == "data":
                data.append(value)
            elif field == "event":
                name = value
            elif not field and not value and (data or name != "message"):
                yield name, "\n".join(data)
                name, data = "message", []
