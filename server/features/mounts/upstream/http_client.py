"""Send the HTTP requests of one mount. Connections are kept, and shared by its conversations."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Collection, Mapping
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qsl, urlsplit

from toolgate.server.features.mounts.upstream.errors import MountError, hide_secrets
from toolgate.server.features.mounts.upstream.messages import MAX_SHOWN

if TYPE_CHECKING:
    import ssl

    from toolgate.server.features.mounts.upstream.http_connection import UpstreamConnection

MAX_CONNECTIONS = 256  # of requests at once
MAX_STREAMS = 10_000  # each conversation holds one open
MAX_IDLE = 16
IDLE = 30.0  # seconds; servers close idle connections after about as long
ROOM_TIMEOUT = 10.0  # seconds
DRAIN_WITHIN = 1.0  # seconds from the answer to the end of its stream
MAX_TITLE = 100  # characters
MAX_READ = 16_384  # bytes of a body that is described: a secret is whole in them
SIGN_IN = 'it wants a sign-in: give its mount auth = "oauth", or an Authorization header'
PORTS = {"http": 80, "https": 443}


class HttpAnswer:
    """The head of a response, and its `body` as it comes."""

    def __init__(
        self,
        status: int,
        headers: Mapping[str, str],
        body: AsyncGenerator[bytes, None],
        secrets: Collection[str],
    ) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self._secrets = secrets
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        self.is_json = kind == "application/json"
        self.is_stream = kind == "text/event-stream"
        self._kind = kind

    async def read(self, limit: int) -> bytes:
        """Return the whole body. Raises MountError for one of more than `limit` bytes."""
        content = bytearray()
        async for part in self.body:
            content += part
            if len(content) > limit:
                raise MountError("TOO_LARGE", f"it sent a response of more than {limit // 2**20} MiB")
        return bytes(content)

    async def drain(self) -> None:
        """Read what follows, for a moment: the connection of a response that has ended is used again."""
        with contextlib.suppress(MountError, TimeoutError):
            async with asyncio.timeout(DRAIN_WITHIN):
                async for _ in self.body:
                    pass

    def hide_too(self, token: str) -> None:
        """Repeat no token that the request carried."""
        if token:
            self._secrets = [*self._secrets, token]

    def hide(self, text: str) -> str:
        """Return what the server said without the operator's secrets."""
        return hide_secrets(text, self._secrets)

    def check_access(self) -> None:
        """Raises MountError where it wants a sign-in, or names another address."""
        if self.status == 401:
            raise MountError("SIGN_IN_REQUIRED", SIGN_IN)
        if 300 <= self.status < 400:
            place = self.hide(self.headers.get("location", "nowhere"))[:MAX_SHOWN]
            raise MountError("REDIRECTED", f"it redirects to {place}: write that URL if you trust it")

    def describe(self, body: bytes) -> str:
        """Return what the body is, in words, without the operator's headers."""
        if "html" in self._kind:
            title = re.search(rb"<title[^<>]*>([^<]{1,%d})" % MAX_TITLE, body, re.IGNORECASE)
            shown = self._shorten(title[1]) if title else ""
            return f'a web page with the title "{shown}"' if shown else "a web page"
        text = self._shorten(body[:MAX_READ])
        return f"{text!r}" if text else "an empty body"

    def _shorten(self, words: bytes) -> str:
        said = hide_secrets(words.decode(errors="replace"), self._secrets)
        return " ".join(said.split())[: 2 * MAX_TITLE]


class TokenSource(Protocol):
    """The token that requests carry, as a person's own."""

    async def find(self) -> str:
        """Return the token, or "" for none. Raises MountError."""
        ...

    async def renew(self, rejected: str) -> str:
        """Return another token than the one that was rejected. Raises MountError."""
        ...

    async def refuse_scope(self, token: str, challenge: str) -> MountError:
        """Return the error of a request whose token has too few scopes."""
        ...

    async def refuse_token(self, token: str) -> MountError:
        """Return the error of a request whose token is rejected, though it is another one."""
        ...

    def note_accepted(self) -> None:
        """The server has taken the token of a request."""
        ...


class HttpClient:
    """Requests to one URL, with the operator's `headers`. `secrets` are not repeated, nor what `list_secrets` finds.
    `tokens`: a person's own, beside the headers."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        secrets: Collection[str] = (),
        tokens: TokenSource | None = None,
    ) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or PORTS[parts.scheme]
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._secrets = [*list_secrets(url, headers), *secrets]
        self._given = (headers, secrets, tokens)
        self._tokens = tokens
        self._headers = {"Host": parts.netloc.rpartition("@")[2], "User-Agent": "toolgate", **headers}
        self._tls = _load_tls_context() if parts.scheme == "https" else None
        self._idle: list[tuple[UpstreamConnection, float]] = []  # and since when, the last ones last
        self._requests = asyncio.Semaphore(MAX_CONNECTIONS)
        self._streams = asyncio.Semaphore(MAX_STREAMS)

    def at(self, url: str) -> "HttpClient":
        """Return what sends the same headers and tokens to another URL."""
        return HttpClient(url, *self._given)

    @contextlib.asynccontextmanager
    async def open(
        self, method: str, headers: Mapping[str, str], body: bytes, *, is_call: bool = True
    ) -> AsyncGenerator[HttpAnswer, None]:
        """Yield the response to one request; one that is no call may take as long as its conversation. A token that is
        rejected is renewed, once. Raises MountError: CONNECT_FAILED if the request was not sent."""
        if self._tokens is None:
            async with self._send(method, headers, body, is_call=is_call) as answer:
                yield answer
            return
        token = await self._tokens.find()
        async with self._send_as(self._tokens, token, method, headers, body, is_call=is_call) as answer:
            if answer.status != 401:
                yield answer
                return
            await answer.drain()
        token = await self._tokens.renew(token)
        async with self._send_as(self._tokens, token, method, headers, body, is_call=is_call) as answer:
            if answer.status == 401:
                raise await self._tokens.refuse_token(token)
            yield answer

    @contextlib.asynccontextmanager
    async def _send_as(
        self, tokens: TokenSource, token: str, method: str, headers: Mapping[str, str], body: bytes, *, is_call: bool
    ) -> AsyncGenerator[HttpAnswer, None]:
        """Yield the response to one request with a token. Raises MountError for a call whose token has too few
        scopes."""
        async with self._send(method, _with_token(headers, token), body, is_call=is_call) as answer:
            answer.hide_too(token)
            challenge = answer.headers.get("www-authenticate", "")
            if answer.status == 403 and "insufficient_scope" in challenge and is_call:
                raise await tokens.refuse_scope(token, challenge)
            if answer.status < 400:
                tokens.note_accepted()
            yield answer

    @contextlib.asynccontextmanager
    async def _send(
        self, method: str, headers: Mapping[str, str], body: bytes, *, is_call: bool
    ) -> AsyncGenerator[HttpAnswer, None]:
        sent = {**self._headers, **headers, **({"Content-Length": str(len(body))} if body else {})}
        room = self._requests if is_call and method != "GET" else self._streams
        await _enter(room)
        try:
            connection = await self._take_connection()
            try:
                head = await connection.request(method, self._target, sent.items(), body)
                yield HttpAnswer(head.status, head.headers, connection.read_body(), self._secrets)
            finally:
                self._give_back(connection)
        finally:
            room.release()

    async def close(self) -> None:
        for connection, _ in self._idle:
            connection.close()
        self._idle.clear()

    async def _take_connection(self) -> "UpstreamConnection":
        """Return a connection that is open and idle, or a new one. Raises MountError."""
        while self._idle:
            connection, since = self._idle.pop()
            if since + IDLE > asyncio.get_running_loop().time() and connection.is_quiet():
                return connection
            connection.close()
        from toolgate.server.features.mounts.upstream.http_connection import open_connection  # as below

        return await open_connection(self._host, self._port, self._tls)

    def _give_back(self, connection: "UpstreamConnection") -> None:
        """Keep a connection whose response was read to its end, and of those that are kept too long or are too many
        close the first."""
        if not connection.is_idle:
            connection.close()
            return
        now = asyncio.get_running_loop().time()
        self._idle.append((connection, now))
        if len(self._idle) > MAX_IDLE or self._idle[0][1] + IDLE < now:
            self._idle.pop(0)[0].close()


def _with_token(headers: Mapping[str, str], token: str) -> Mapping[str, str]:
    return {**headers, "Authorization": f"Bearer {token}"} if token else headers


def list_secrets(url: str, headers: Mapping[str, str]) -> list[str]:
    """Return what must not be repeated of a mount's URL and headers: the query may be a key."""
    query = urlsplit(url).query
    told = [query, *(value for _, value in parse_qsl(query)), *(word.partition("=")[2] for word in query.split("&"))]
    return [word for value in (*headers.values(), *told) for word in (value, *value.split())]


def _load_tls_context() -> "ssl.SSLContext":
    from toolgate.tools.api.outbound.vetted_client import make_tls_context  # start-up: few mounts have a URL

    return make_tls_context()


async def _enter(room: asyncio.Semaphore) -> None:
    """Wait until another request may begin. Raises MountError."""
    if not room.locked():
        await room.acquire()
        return
    try:
        async with asyncio.timeout(ROOM_TIMEOUT):
            await room.acquire()
    except TimeoutError:
        raise MountError("CONNECT_FAILED", "too many requests to it are under way") from None
