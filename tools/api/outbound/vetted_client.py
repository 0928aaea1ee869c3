"""Send one HTTP/1.1 request to a vetted address, and read its answer; redirects are not followed.

Import it late: httpx and httpcore cost more than the rest of the start-up.
"""

import asyncio
import functools
import os
import ssl
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import certifi
import httpcore
import httpx

from toolgate.tools.api.context.services import Page
from toolgate.tools.api.errors import drop_tracebacks
from toolgate.tools.api.outbound.address_policy import AddressPolicy
from toolgate.tools.api.outbound.dns import Resolver, is_usable_host, resolve_vetted
from toolgate.tools.api.outbound.errors import (
    MAX_URL,
    REDIRECTS,
    AddressRefusedError,
    PageTimeoutError,
    PageTlsError,
    PageUnreachableError,
    Resolve,
    shorten_url,
)

AGENT = "Mozilla/5.0 (compatible; toolgate)"  # many sites refuse an agent that begins otherwise
CONNECT = 10.0  # seconds for all addresses of a host, within the fetch's own limit
MAX_CONNECTIONS = 128  # in a lane: endless pages that take them all leave other lanes alone
MAX_IDLE = 16  # in a lane; httpcore checks each whenever a request begins or ends
IDLE = 15.0  # seconds; servers close idle connections soon after
MAX_PIECES = 10_000  # pieces of a body beyond one per SMALL bytes: each costs more than many bytes do
SMALL = 16  # bytes
AT_A_TIME = 64  # pieces from one read before other tasks get a turn
SLACK = 65_536  # bytes by which a compressed body may exceed its content
GZIP, ZLIB, RAW = 31, 15, -15  # window bits
COMPRESSIONS = frozenset(
    (
        "gzip",
        "x-gzip",
        "deflate",
        "br",
        "zstd",
        "compress",
        "x-compress",
        "bzip2",
        "x-bzip2",
        "xz",
        "lzma",
        "dcb",
        "dcz",
    )
)


class Unpacker(Protocol):
    """Decodes a body as it arrives. `has_ended` says whether the decoded body has come to its end."""

    @property
    def has_ended(self) -> bool: ...

    def __call__(self, chunk: bytes, room: int) -> bytes:
        """Return the next decoded bytes, at most `room`."""
        ...


class PinnedBackend(httpcore.AsyncNetworkBackend):
    """Connects to vetted addresses. TLS and `Host`, set by httpcore, keep the name. From a connection at most
    `max_received` bytes are read."""

    def __init__(self, allowed: AddressPolicy, resolve: Resolve, max_received: int | None = None) -> None:
        self._allowed = allowed
        self._resolve = resolve
        self._max_received = max_received
        self._inner: Any = httpcore.AnyIOBackend()  # without anyio a type checker sees an empty class

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await resolve_vetted(host, port, self._allowed, self._resolve)
        share = (timeout or CONNECT) / len(addresses)
        failure: Exception | None = None
        for address in addresses:
            try:
                connect = self._inner.connect_tcp(address, port, share, local_address, socket_options)
                stream: httpcore.AsyncNetworkStream = await connect
                return BoundedStream(stream, self._max_received)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                drop_tracebacks(error)  # they hold this frame
                failure = error
        raise _to_page_error(f"could not connect to {host} port {port}", failure)


class BoundedStream(httpcore.AsyncNetworkStream):
    """A connection from which at most `left` bytes are read, also of informational answers, which may come for ever.
    None is no limit."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, left: int | None) -> None:
        self._stream = stream
        self._left = left

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._left is None:
            return await self._stream.read(max_bytes, timeout)
        if self._left <= 0:
            raise httpcore.ReadError("the answer is too long")
        data = await self._stream.read(min(max_bytes, self._left), timeout)
        self._left -= len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        try:
            return BoundedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._left)
        except asyncio.CancelledError:
            await self._stream.aclose()  # httpcore 1.0 closes it after other errors only
            raise

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class VettedClient:
    """Connections to vetted addresses, with a pool for each lane: one per search engine, and one for all pages.

    With `max_received` each connection serves a single request, and so many bytes are read from it at most.
    """

    def __init__(
        self,
        allowed: AddressPolicy,
        verify: ssl.SSLContext | None,
        resolve: Resolve | None,
        max_received: int | None = None,
    ) -> None:
        self._tls_context = verify or make_tls_context()
        self._backend = PinnedBackend(allowed, resolve or Resolver().addresses, max_received)
        self._reuses = max_received is None
        self._pools: dict[str, httpcore.AsyncConnectionPool] = {}

    async def close(self) -> None:
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.aclose()

    def _pool(self, lane: str) -> httpcore.AsyncConnectionPool:
        if lane not in self._pools:
            self._pools[lane] = httpcore.AsyncConnectionPool(
                ssl_context=self._tls_context,
                max_connections=MAX_CONNECTIONS,
                max_keepalive_connections=MAX_IDLE if self._reuses else 0,
                keepalive_expiry=IDLE,
                network_backend=self._backend,
            )
        return self._pools[lane]

    def parse_url(self, url: str, base: httpx.URL | None = None) -> httpx.URL:
        """Return `url`, relative to `base`, parsed and checked. Raises PageUnreachableError or AddressRefusedError."""
        if len(url) > MAX_URL:
            raise PageUnreachableError(f"the URL is longer than {MAX_URL} characters")
        try:
            parsed = httpx.URL(url.strip()) if base is None else base.join(url.strip())
            host = parsed.raw_host.decode("ascii")
        except (httpx.InvalidURL, UnicodeError, ValueError) as error:  # idna's own error is a UnicodeError
            raise PageUnreachableError(f"not a usable URL: {shorten_url(url)} ({error})") from None
        if parsed.scheme not in ("http", "https"):
            hint = "" if parsed.scheme else ": begin a web address with https://"
            raise AddressRefusedError(f"only http and https URLs can be fetched, not {shorten_url(url)}{hint}")
        if parsed.userinfo:
            raise AddressRefusedError("a URL with a user name or password in it is not fetched; leave that part out")
        if not is_usable_host(host):
            raise PageUnreachableError(f"not a usable host name in {shorten_url(url)}")
        if parsed.port is not None and not 0 < parsed.port < 65536:
            raise PageUnreachableError(f"not a usable port in {shorten_url(url)}")
        return parsed

    async def request(
        self,
        method: str,
        url: httpx.URL,
        headers: Mapping[str, str],
        limit: int,
        body: bytes = b"",
        lane: str = "",
        *,
        allow_incomplete: bool = False,
    ) -> Page:
        """Send one request and return its answer, with up to `limit` decoded bytes."""
        address = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path or b"/")
        given = {"host": url.netloc.decode("ascii"), "user-agent": AGENT, "accept": "*/*"}
        given.update((name.lower(), value) for name, value in headers.items())
        given["accept-encoding"] = "gzip, deflate"
        if body:
            given["content-length"] = str(len(body))
        if not self._reuses:
            given["connection"] = "close"
        try:
            async with self._pool(lane).stream(
                method,
                address,
                headers=list(given.items()),
                content=body or None,
                extensions={"timeout": {"connect": CONNECT}},
            ) as response:
                received = _decode_headers(response.headers)
                if response.status in REDIRECTS and received.get("location"):
                    limit = 0  # the body of a redirect is not used
                reading = BodyReading(_make_unpacker(received.get("content-encoding", "")), limit)
                try:
                    await reading.read(response)
                except (httpcore.RemoteProtocolError, httpcore.ReadError, ssl.SSLError):
                    if not allow_incomplete or not reading.content:
                        raise
                    reading.is_incomplete = True
                truncated, is_incomplete = reading.truncated, reading.is_incomplete
                return Page(str(url), response.status, received, bytes(reading.content), truncated, is_incomplete)
        except zlib.error:
            raise PageUnreachableError(f"{shorten_url(str(url))} sent a body that can't be decompressed") from None
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, ssl.SSLError) as error:
            raise _to_page_error(f"could not fetch {shorten_url(str(url))}", error) from None


class BodyReading:
    """Reads at most `limit` decoded bytes, decoded as they arrive: a few bytes may decode to gigabytes."""

    def __init__(self, unpack: "Unpacker", limit: int) -> None:
        self._unpack = unpack
        self._limit = limit
        self.content = bytearray()
        self.truncated = False
        self.is_incomplete = False

    async def read(self, response: httpcore.Response) -> None:
        """Read the body of a response as far as the limit. What has come stays in `content` after an error."""
        if self._limit == 0:
            self.truncated = True
            return
        received = pieces = 0
        async for chunk in response.aiter_stream():
            self.content += self._unpack(chunk, self._limit + 1 - len(self.content))
            received += len(chunk)
            pieces += 1
            if pieces > MAX_PIECES + received // SMALL:
                raise PageUnreachableError("the server sent its body in too many small pieces")
            if pieces % AT_A_TIME == 0:
                await asyncio.sleep(0)
            # many bytes that decode to nothing are an attack too
            if len(self.content) > self._limit or received > self._limit + SLACK:
                del self.content[self._limit :]
                self.truncated = True
                return
        self.is_incomplete = received > 0 and not self._unpack.has_ended


class _Inflate:
    """Decoder of gzip (one or more members) or deflate (with or without zlib's header, as servers send both)."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._inflate = zlib.decompressobj(bits)
        self._started = False

    @property
    def has_ended(self) -> bool:
        return self._inflate.eof

    def __call__(self, chunk: bytes, room: int) -> bytes:
        try:
            unpacked = self._inflate.decompress(chunk, room)
        except zlib.error:
            if self._bits != ZLIB or self._started:
                raise
            self._bits, self._inflate = RAW, zlib.decompressobj(RAW)
            unpacked = self._inflate.decompress(chunk, room)
        self._started = True
        while self._bits == GZIP and self._inflate.eof and self._inflate.unused_data and len(unpacked) < room:
            rest = self._inflate.unused_data
            if not rest.startswith(b"\x1f\x8b"):
                break  # padding after the last member
            self._inflate = zlib.decompressobj(GZIP)
            unpacked += self._inflate.decompress(rest, room - len(unpacked))
        return unpacked


class _Identity:
    """Decoder of a body that is not compressed."""

    has_ended = True  # HTTP says how long it is

    def __call__(self, chunk: bytes, room: int) -> bytes:
        return chunk[:room]


def _make_unpacker(encoding: str) -> Unpacker:
    """Return the decoder of a content-encoding. Words that name no compression, such as utf-8 and aws-chunked, are
    ignored, as browsers do."""
    names = [name.strip() for name in encoding.lower().split(",")]
    compressions = [name.removeprefix("x-") for name in names if name in COMPRESSIONS]
    match compressions:
        case []:
            return _Identity()
        case ["gzip"]:
            return _Inflate(GZIP)
        case ["deflate"]:
            return _Inflate(ZLIB)
        case _:  # also stacked encodings: each layer multiplies a bomb
            raise PageUnreachableError(
                f"the server sent an unrequested content-encoding: {shorten_url(encoding.strip().lower())!r}"
            )


def _decode_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in raw:
        key = name.decode("ascii", "replace").lower()
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers and key != "location" else text
    return headers


PLAIN_ANSWERS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG")  # OpenSSL's


def _to_page_error(what: str, error: Exception | None) -> PageUnreachableError:
    text = f"{what}: {describe_error(error)}"
    if isinstance(error, httpcore.TimeoutException):
        return PageTimeoutError(text)
    if any(isinstance(cause, ssl.SSLError) for cause in _causes(error)):
        return PageTlsError(text)
    return PageUnreachableError(text)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def describe_error(error: BaseException | None) -> str:
    """Return the cause below httpcore, in the system's own words."""
    if isinstance(error, httpcore.TimeoutException):
        return "no answer in time"
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"TLS: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            if cause.reason in PLAIN_ANSWERS:
                return "TLS: that port speaks http, not https"
            return f"TLS: {cause.reason or 'the handshake failed'}".lower().replace("tls", "TLS", 1)
        if isinstance(cause, OSError) and cause.errno and cause.errno > 0:
            return os.strerror(cause.errno).lower()
    return str(error).rstrip(".").lower() or "the connection broke"


def make_tls_context() -> ssl.SSLContext:
    """Return a context with the system's certificates and certifi's: slim images have none, companies add their own."""
    return _load_tls_context(ssl.get_default_verify_paths())


@functools.lru_cache(maxsize=2)  # to load the certificates takes 50 ms
def _load_tls_context(places: ssl.DefaultVerifyPaths) -> ssl.SSLContext:
    """Return the context for the places that the environment names (SSL_CERT_FILE, SSL_CERT_DIR)."""
    del places
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context
