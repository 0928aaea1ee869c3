"""Connect the MCP client over HTTP+SSE, and over Streamable HTTP with and without sessions."""

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

import msgspec

from toolgate.server.base.errors import UsageError
from toolgate.server.base.http import event_stream
from toolgate.server.base.http.event_stream import EventTooLargeError
from toolgate.server.base.http.head import join_fields
from toolgate.server.cli.mcp_client.client import (
    ANSWER_TIMEOUT,
    CLIENT_IDENTITY,
    MAX_MESSAGE,
    SERVER_COMMAND,
    ConnectionLostError,
    McpClient,
    McpClientError,
    NotificationHandler,
    QuestionHandler,
    format_error,
    initialize_params,
    wait_for_exit,
)
from toolgate.server.config.types import is_loopback
from toolgate.server.protocol.header_values import encode_header
from toolgate.server.protocol.request_meta import CAPABILITIES, VERSION
from toolgate.server.protocol.request_meta import CLIENT as CLIENT_INFO
from toolgate.server.protocol.revisions import NEWEST_WITH_SESSION, STATELESS

TRUST = "; to trust its authority, name the file of that certificate in SSL_CERT_FILE"
CONNECT_HINTS = {  # words of why there is no connection → what helps
    "connection refused": "; is the server running?",
    "self-signed certificate": TRUST,
    "local issuer certificate": TRUST,
}
CONNECT_TIMEOUT = 10.0  # seconds for a connection
CLOSE_TIMEOUT = 1.0  # seconds for a connection to end
ConnectedClient = tuple[McpClient, dict[str, Any]]  # a client, and the server's first answer
Opened = AsyncGenerator[ConnectedClient, None]


class ServerUnreachableError(McpClientError):
    """The server can't be connected to."""


class SignInRequiredError(McpClientError):
    """The server requires an access token, or another one."""


class HttpResponse(msgspec.Struct, frozen=True):
    """The head of a response, and its body as it arrives."""

    status: int
    headers: Mapping[str, str]
    body: AsyncIterator[bytes]
    version: str = "HTTP/1.1"

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")


class StreamableClient:
    """Send each message by POST over Streamable HTTP. `revision` tells if there are sessions; `token` may be ""."""

    def __init__(
        self, url: str, revision: str, token: str, note: NotificationHandler | None, question: QuestionHandler | None
    ) -> None:
        self._url = url
        self._headers = {"MCP-Protocol-Version": revision, **bearer_headers(token, url)}
        self._is_stateless = revision in STATELESS
        capabilities: dict[str, Any] = {"elicitation": {}} if question is not None else {}
        self._envelope: dict[str, Any] = {VERSION: revision, CAPABILITIES: capabilities, CLIENT_INFO: CLIENT_IDENTITY}
        self._tasks: set[asyncio.Task[None]] = set()
        self.client = McpClient(self._send, note, question)

    def _send(self, message: dict[str, Any]) -> None:
        task = asyncio.get_running_loop().create_task(self.post(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def post(self, message: dict[str, Any]) -> None:
        """Send a message, and pass its answers to the client."""
        headers = self._headers
        if self._is_stateless and "method" in message:
            params = message.get("params", {})
            message = {**message, "params": {**params, "_meta": {**params.get("_meta", {}), **self._envelope}}}
            headers = {**headers, "Mcp-Method": message["method"], "Mcp-Name": encode_header(params.get("name", ""))}
        fault: McpClientError = ConnectionLostError("the response ended before it was complete")
        try:
            async with open_response("POST", self._url, headers, msgspec.json.encode(message)) as response:
                id = response.headers.get("mcp-session-id")
                if id is not None:
                    self._headers = {**self._headers, "Mcp-Session-Id": id}
                await self._receive(response)
        except McpClientError as error:
            fault = error
        finally:
            if "method" in message and "id" in message:
                self.client.fail(fault, message["id"])

    async def _receive(self, response: HttpResponse) -> None:
        if response.is_stream:
            async for name, data in read_events(response.body):
                if name == "message" and data:
                    self.client.receive(_decode_message(data))
            return
        body = await read_body(response.body)
        if response.headers.get("content-type", "").startswith("application/json"):
            message = _decode_message(body)
            if isinstance(message, dict) and "error" in message and message.get("id") is None:
                raise McpClientError(format_error(message["error"]))
            self.client.receive(message)
            return
        text = _describe_body(response, body)
        if response.status == 401:
            how = f"Run `toolgate login {self._url}`, or set TOOLGATE_TOKEN."
            refused = f"The server refuses the access token: {text}."
            raise SignInRequiredError(f"{refused if 'Authorization' in self._headers else 'Not signed in.'} {how}")
        if response.status in (404, 405) and urlsplit(self._url).path.rstrip("/").endswith("/sse"):
            text += ": no HTTP+SSE server answers there; with Streamable HTTP the URL ends in /mcp"
        if response.status >= 300:
            raise McpClientError(f"HTTP {response.status} {text}")

    async def close(self) -> None:
        """Cancel running requests, and end the session, if any."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if "Mcp-Session-Id" in self._headers:
            with contextlib.suppress(McpClientError):
                async with open_response("DELETE", self._url, self._headers, b""):
                    pass


@contextlib.asynccontextmanager
async def connect(
    url: str,
    revision: str | None = None,
    *,
    token: str = "",
    note: NotificationHandler | None = None,
    question: QuestionHandler | None = None,
) -> Opened:
    """Yield a client of the Streamable HTTP server at `url`, and the answer to initialize or server/discover.

    Without a `revision`, the stateless era is tried first. Raises UsageError, McpClientError.
    """
    parse_url(url)
    newest = next(iter(STATELESS))
    wire = StreamableClient(url, revision or newest, token, note, question)
    try:
        try:
            answer = await _initialize(wire, revision or newest, question)
        except (ServerUnreachableError, SignInRequiredError):
            raise
        except McpClientError:
            if revision is not None:
                raise
            wire = StreamableClient(url, NEWEST_WITH_SESSION.name, token, note, question)
            answer = await _initialize(wire, NEWEST_WITH_SESSION.name, question)
        yield wire.client, answer
    finally:
        await wire.close()


async def _initialize(wire: StreamableClient, revision: str, question: QuestionHandler | None) -> dict[str, Any]:
    if revision in STATELESS:
        known: dict[str, Any] = await wire.client.request("server/discover")
        return known
    params = initialize_params(revision, can_answer=question is not None)
    answer: dict[str, Any] = await wire.client.request("initialize", params)
    await wire.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
    return answer


@contextlib.asynccontextmanager
async def connect_sse(
    url: str, *, note: NotificationHandler | None = None, question: QuestionHandler | None = None
) -> Opened:
    """Connect to an HTTP+SSE server; yields the client and the initialize result."""
    async with open_response("GET", url, {"Accept": "text/event-stream"}, b"") as response:
        stream = read_events(response.body)
        name, path = await anext(stream)
        if not response.is_stream or name != "endpoint":
            raise McpClientError(f"{url} is not an HTTP+SSE server")
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        client = McpClient(queue.put_nowait, note, question)
        work = (_write_all(queue, urljoin(url, path), client), _read_all(stream, client))
        tasks = [asyncio.create_task(each) for each in work]
        try:
            params = initialize_params("2024-11-05", can_answer=question is not None)
            answer = await client.request("initialize", params)
            client.notify("notifications/initialized")
            yield client, answer
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _write_all(queue: asyncio.Queue[dict[str, Any]], url: str, client: McpClient) -> None:
    while True:
        message = await queue.get()
        try:
            async with open_response("POST", url, {}, msgspec.json.encode(message)) as response:
                if response.status != 202:
                    raise McpClientError(f"HTTP {response.status}")
        except McpClientError as fault:
            client.fail(fault, message.get("id"))


async def _read_all(stream: AsyncIterator[tuple[str, str]], client: McpClient) -> None:
    fault = McpClientError("the stream was lost")
    try:
        async for name, data in stream:
            if name == "message":
                client.receive(_decode_message(data))
        fault = McpClientError("the stream ended")
    except McpClientError as error:
        fault = error
    finally:
        client.fail(fault)


@contextlib.asynccontextmanager
async def spawn_http_server(options: Sequence[str], environment: Mapping[str, str]) -> AsyncGenerator[str, None]:
    """Start a server with both HTTP transports on a free port; yield its base URL."""
    own = [*options, "--sse", "--http", "--auth", "none", "--host", "127.0.0.1", "--port", "0"]
    process = await asyncio.create_subprocess_exec(
        *SERVER_COMMAND, *own, stderr=asyncio.subprocess.PIPE, limit=MAX_MESSAGE, env=environment
    )
    assert process.stderr is not None
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    copying = asyncio.create_task(_copy_log(process.stderr, started))
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            base = await started
        yield base
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await wait_for_exit(process)
        await copying


async def _copy_log(log: asyncio.StreamReader, started: asyncio.Future[str]) -> None:
    """Copy the log to standard error, except for the line with the base URL, which sets `started`."""
    while line := await log.readline():
        found = re.search(rb"serving (http://\S+)/mcp", line)
        if found and not started.done():
            started.set_result(found[1].decode())
        else:
            sys.stderr.write(line.decode(errors="replace"))
    if not started.done():
        started.set_exception(McpClientError("the server did not start"))


# -- one request and its response


@contextlib.asynccontextmanager
async def open_response(
    method: str, url: str, headers: Mapping[str, str], body: bytes, *, address: str | None = None
) -> AsyncGenerator[HttpResponse, None]:
    """Send one request on its own connection, closed on leaving. Follows no redirect.

    `address` is where to connect, if not where the host's name resolves now. Raises UsageError for an invalid URL,
    ServerUnreachableError, McpClientError.
    """

    import httpcore

    from toolgate.tools.api.outbound.vetted_client import describe_error, make_tls_context

    parts = parse_url(url)
    sent = {
        "Host": parts.netloc.rpartition("@")[2],
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers,
    }
    target = httpcore.URL(
        scheme=parts.scheme,
        host=address or parts.hostname or "",
        port=parts.port,
        target=(parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
    )
    context = make_tls_context() if parts.scheme == "https" else None
    extensions = {"timeout": {"connect": CONNECT_TIMEOUT}, "sni_hostname": parts.hostname}
    fields = [(name, value) for name, value in sent.items() if value]
    try:
        async with (
            httpcore.AsyncConnectionPool(ssl_context=context) as pool,
            pool.stream(method, target, headers=fields, content=body, extensions=extensions) as response,
        ):
            joined = join_fields((name.lower(), value) for name, value in response.headers)
            received = {name.decode("latin-1"): value.decode("latin-1") for name, value in joined.items()}
            version = response.extensions["http_version"].decode()
            yield HttpResponse(response.status, received, aiter(response.aiter_stream()), version)
    except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
        reason = describe_error(error)
        hint = next((hint for words, hint in CONNECT_HINTS.items() if words in reason), "")
        raise ServerUnreachableError(f"{url}: {reason}{hint}") from None
    except (httpcore.ReadError, httpcore.RemoteProtocolError) as error:
        raise ConnectionLostError(f"{url}: the connection broke before the answer came") from error
    except (httpcore.NetworkError, httpcore.ProtocolError, ValueError, msgspec.DecodeError) as error:
        raise McpClientError(f"{url}: {describe_error(error)}") from error


async def close_connection(sink: asyncio.StreamWriter) -> None:
    """Close a connection without waiting for a peer that ignores TLS's close."""
    sink.close()
    try:
        with contextlib.suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await sink.wait_closed()
    finally:
        sink.transport.abort()


def _describe_body(response: HttpResponse, body: bytes) -> str:
    """Return the body's text, of a web page only its title."""
    text = body.decode(errors="replace").strip()
    if "html" not in response.headers.get("content-type", ""):
        return text[:500]
    title = re.search(r"<title[^<>]*>([^<]{1,100})", text, re.IGNORECASE)
    named = f" ({' '.join(title[1].split())})" if title else ""
    return f"with a web page{named}: no MCP server answers at this URL"


def parse_url(url: str) -> SplitResult:
    """Return the parts of an http or https URL. Raises UsageError."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and url.isascii():
            return parts
    except ValueError:
        pass
    raise UsageError(f"--url: {url!r} is not an http or https URL{_suggest_scheme(url)}")


def get_origin(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port of a valid URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"https": 443, "http": 80}.get(parts.scheme)


def _suggest_scheme(url: str) -> str:
    """Return " (did you mean …?)" for a host without a scheme, or ""."""
    found = re.fullmatch(r"([A-Za-z0-9.-]+)(:[0-9]+)?(/\S*)?", url)
    host = found[1] if found else ""
    if not (is_loopback(host) or "." in host):
        return ""
    path = "" if "/" in url else "/mcp"
    return f" (did you mean {'http' if is_loopback(host) else 'https'}://{url}{path}?)"


def bearer_headers(token: str, url: str) -> dict[str, str]:
    """Return the headers with the access token. Raises UsageError if they would travel unencrypted."""
    if not token:
        return {}
    if not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError("TOOLGATE_TOKEN is not an access token")
    parts = parse_url(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise UsageError(f"--url: the token in TOOLGATE_TOKEN is sent over https or to this machine only, not to {url}")
    return {"Authorization": f"Bearer {token}"}


def _decode_message(data: bytes | str) -> Any:
    """Return a message. Raises McpClientError for one that is no JSON, or too deep."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise McpClientError("the server sent something that is no JSON, or nested too deeply") from None


async def read_body(body: AsyncIterator[bytes], limit: int = MAX_MESSAGE) -> bytes:
    """Return a whole body. Raises McpClientError if it has more than `limit` bytes."""
    content = bytearray()
    async for part in body:
        content += part
        if len(content) > limit:
            raise McpClientError(f"the answer is larger than {limit:,} bytes")
    return bytes(content)


async def read_events(body: AsyncIterator[bytes], limit: int = MAX_MESSAGE) -> AsyncGenerator[tuple[str, str], None]:
    """Yield the name and data of server-sent events. Raises McpClientError for one of more than `limit` bytes."""
    try:
        async for event in event_stream.read_events(body, limit):
            yield event.name, event.data
    except EventTooLargeError:
        raise McpClientError(f"an event is larger than {limit:,} bytes") from None
