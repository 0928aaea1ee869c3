"""Send the HTTP requests of one mount. Connections are kept, and shared by its conversations."""

import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from toolgate.server.features.mounts.upstream.errors import MountError, hide_secrets

if TYPE_CHECKING:
    import httpcore

MAX_CONNECTIONS = 256  # of requests at once
MAX_STREAMS = 10_000  # each conversation holds one open
MAX_IDLE = 16
IDLE = 30.0  # seconds; servers close idle connections after about as long
CONNECT_TIMEOUT = 10.0
WRITE_TIMEOUT = 30.0
MAX_TITLE = 100  # characters
MAX_READ = 16_384  # bytes of a body that is described: a secret is whole in them


class HttpAnswer:
    """The head of a response, and its `body` as it comes."""

    def __init__(self, inner: "httpcore.Response", secrets: Collection[str]) -> None:
        self._secrets = secrets
        self.status = inner.status
        self.headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in inner.headers}
        self.body: AsyncIterator[bytes] = aiter(inner.aiter_stream())
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
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


class HttpClient:
    """Requests to one URL, with the operator's `headers`."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        import httpcore  # start-up: few mounts have a URL

        from toolgate.tools.reading.web.vetted_client import make_tls_context

        parts = urlsplit(url)
        self._target = httpcore.URL(
            scheme=parts.scheme,
            host=parts.hostname or "",
            port=parts.port,
            target=(parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
        )
        self._secrets = [word for value in headers.values() for word in (value, *value.split())]
        self._headers = {"Host": parts.netloc, "User-Agent": "toolgate", **headers}
        context = make_tls_context() if parts.scheme == "https" else None
        self._pool = httpcore.AsyncConnectionPool(
            context, max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_IDLE, keepalive_expiry=IDLE
        )
        self._streams = httpcore.AsyncConnectionPool(context, max_connections=MAX_STREAMS, max_keepalive_connections=0)

    @contextlib.asynccontextmanager
    async def open(self, method: str, headers: Mapping[str, str], body: bytes) -> AsyncGenerator[HttpAnswer, None]:
        """Yield the response to one request. Raises MountError: CONNECT_FAILED if the request was not sent."""
        import httpcore  # as above

        from toolgate.tools.reading.web.vetted_client import describe_error

        sent = {**self._headers, **headers, **({"Content-Length": str(len(body))} if body else {})}
        timeouts = {"connect": CONNECT_TIMEOUT, "write": WRITE_TIMEOUT, "pool": CONNECT_TIMEOUT}
        extensions = {"timeout": timeouts}
        try:
            async with (self._streams if method == "GET" else self._pool).stream(
                method, self._target, headers=list(sent.items()), content=body or None, extensions=extensions
            ) as response:
                yield HttpAnswer(response, self._secrets)
        except (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.PoolTimeout) as error:
            raise MountError("CONNECT_FAILED", f"no connection to it: {describe_error(error)}") from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException):
            raise MountError("CONNECTION_LOST", "the connection broke before the answer came") from None

    async def close(self) -> None:
        await self._pool.aclose()
        await self._streams.aclose()
