"""Hold one conversation with a mounted server, opened for one set of a client's capabilities."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Coroutine, Mapping
from typing import Any

import msgspec

from toolgate.server.features.mounts.upstream import messages
from toolgate.server.features.mounts.upstream.envelope import create_envelope, list_headers
from toolgate.server.features.mounts.upstream.errors import MountError, UpstreamRefusal, UpstreamRefusedError
from toolgate.server.features.mounts.upstream.messages import Members
from toolgate.server.features.mounts.upstream.peer import Flight, MountNotice, UpstreamPeer
from toolgate.server.protocol.request_meta import LOG_LEVEL

MAX_PAGES = 1_000  # of one list
MAX_LISTED = 10_000  # items of one list
MAX_LIST = 32 * 2**20  # bytes of one list
LIST_TIMEOUT = 10.0  # seconds for a page of a list
LISTS = ("tools", "prompts", "resources")
LISTEN = "subscriptions/listen"
LISTEN_AGAIN = 5.0  # seconds after the end of such a request
METHODS = {  # capability of a client → the questions that it answers
    "elicitation": "elicitation/create",
    "sampling": "sampling/createMessage",
    "roots": "roots/list",
}


class UpstreamInfo(msgspec.Struct, frozen=True):
    """What a mounted server said of itself. `revision` is what is spoken with it."""

    revision: str
    is_modern: bool
    capabilities: dict[str, Any]
    instructions: str


class FullList(msgspec.Struct, frozen=True):
    """All items of a list. `ttl`: seconds that the mounted server says it holds, if it says so."""

    items: list[dict[str, Any]]
    ttl: float | None


class ForwardedParams(msgspec.Struct, frozen=True):
    """What a client asks of a mounted server. `headers`: the arguments that headers repeat, for a server of the
    stateless era over HTTP. `log_level`: the least that the client wants to be told of its log. `is_task`: a server
    with sessions runs it as a task only."""

    method: str
    params: Mapping[str, Any]
    headers: Mapping[str, str] = {}
    log_level: str | None = None
    is_task: bool = False


class UpstreamSession:
    """One conversation. `capabilities` are what the mounted server was told of the client; `hidden` is what its words
    are not repeated with, `secrets` those of it that are kept sealed, `owner` the principal whose own secrets it was
    opened with, or ""."""

    def __init__(self, peer: UpstreamPeer, info: UpstreamInfo, capabilities: Mapping[str, Any]) -> None:
        self.peer = peer
        self.info = info
        self.capabilities = capabilities
        self.hidden: Collection[str] = ()
        self.secrets: Collection[str] = ()
        self.owner = ""
        self._following: asyncio.Task[None] | None = None
        self._works: set[asyncio.Task[None]] = set()
        self._envelope = create_envelope(info.revision, capabilities) if info.is_modern else {}
        self.can_ask = frozenset(method for name, method in METHODS.items() if name in capabilities)

    @property
    def is_alive(self) -> bool:
        return self.peer.failure is None

    async def forward(self, asked: ForwardedParams, flight: Flight, *, with_progress: bool) -> None:
        """Send a client's request; `flight` brings what comes of it. Raises MountError."""
        method, params = asked.method, asked.params
        headers = {**self._headers(method, params), **asked.headers} if self.info.is_modern else {}
        level = {LOG_LEVEL: asked.log_level} if asked.log_level else {}
        await self.peer.send(method, self._with_envelope(params, level), flight, headers, with_progress)

    async def start(self, method: str, params: Mapping[str, Any], flight: Flight) -> None:
        """Send a request of our own that goes on; `flight` brings what comes of it. Raises MountError."""
        await self.peer.send(method, self._with_envelope(params), flight, self._headers(method, params))

    async def request(self, method: str, params: Mapping[str, Any] = {}, timeout: float = LIST_TIMEOUT) -> Members:
        """Return the result of a request of our own. Raises MountError, UpstreamRefusedError, TimeoutError."""
        return await self.peer.request(method, self._with_envelope(params), timeout, self._headers(method, params))

    def run_soon(self, work: Coroutine[Any, Any, object]) -> None:
        """Have requests made whose results nobody needs, and whose failures help nobody."""
        task = asyncio.get_running_loop().create_task(_run_quietly(work))
        self._works.add(task)
        task.add_done_callback(self._works.discard)

    async def list_all(self, method: str, field: str) -> FullList:
        """Return a list, page by page. Raises MountError, UpstreamRefusedError."""
        items: list[dict[str, Any]] = []
        ttl: float | None = None
        cursor: Any = None
        size = 0
        for _ in range(MAX_PAGES):
            page = await self._request_page(method, {} if cursor is None else {"cursor": cursor})
            size += messages.measure_members(page)
            if size > MAX_LIST:
                raise MountError("LIST_FAILED", f"its answer to {method} has more than {MAX_LIST // 2**20} MiB")
            found = messages.read_value(page.get(field, msgspec.UNSET))
            if not isinstance(found, list):
                raise MountError("LIST_FAILED", f"its answer to {method} has no list of {field}")
            items += [item for item in found if isinstance(item, dict)]
            ttl = _shorter(ttl, messages.read_value(page.get("ttlMs", msgspec.UNSET)))
            following = messages.read_value(page.get("nextCursor", msgspec.UNSET))
            if following is None or len(items) > MAX_LISTED:
                return FullList(items[:MAX_LISTED], ttl)
            if following == cursor:
                raise MountError("LIST_FAILED", f"its answer to {method} names the same next page again")
            cursor = following
        raise MountError("LIST_FAILED", f"its answer to {method} has more than {MAX_PAGES} pages")

    def follow_lists(self) -> None:
        """Have a server of the stateless era tell of changes of its lists; one of the sessions era does by itself."""
        wanted = {
            f"{name}ListChanged": True
            for name in LISTS
            if isinstance(declared := self.info.capabilities.get(name), dict) and declared.get("listChanged") is True
        }
        if self.info.is_modern and wanted and self._following is None:
            self._following = asyncio.get_running_loop().create_task(self._follow_lists({"notifications": wanted}))

    async def _follow_lists(self, params: Mapping[str, Any]) -> None:
        while self.is_alive:
            flight = Flight(is_call=False)
            try:
                await self.start(LISTEN, params, flight)
                event = await flight.events.get()
                while isinstance(event, MountNotice):
                    event = await flight.events.get()
                if isinstance(event, UpstreamRefusal):
                    return  # it has none
            except MountError:
                pass  # it is tried again
            finally:
                self.peer.cancel(flight, "no longer needed")
            await asyncio.sleep(LISTEN_AGAIN)

    @contextlib.asynccontextmanager
    async def subscribe(self, uri: str) -> AsyncGenerator[None]:
        """Have the mounted server tell of changes of a resource. Raises MountError, UpstreamRefusedError and
        TimeoutError."""
        flight = Flight(is_call=False)
        if self.info.is_modern:
            params = {"notifications": {"resourceSubscriptions": [uri]}}
            await self.start(LISTEN, params, flight)
        else:
            await self.request("resources/subscribe", {"uri": uri})
        try:
            yield
        finally:
            if self.info.is_modern:
                self.peer.cancel(flight, "no longer needed")
            elif self.is_alive:
                with contextlib.suppress(MountError, UpstreamRefusedError, TimeoutError):
                    await self.request("resources/unsubscribe", {"uri": uri})

    async def read_log(self) -> str:
        """Return the last that the mounted server said beside the protocol, or ""."""
        return await self.peer.wire.read_log() if self.peer.wire is not None else ""

    async def close(self) -> None:
        self.peer.on_failure = None  # it ends because we end it
        if self._following is not None:
            self._following.cancel()
        if self.peer.wire is not None:
            await self.peer.wire.close()

    async def _request_page(self, method: str, params: Mapping[str, Any]) -> Members:
        try:
            return await self.request(method, params)
        except TimeoutError:
            raise MountError("LIST_FAILED", f"no answer to {method} within {LIST_TIMEOUT:g} s") from None

    def _with_envelope(self, params: Mapping[str, Any], more: Mapping[str, str] = {}) -> Mapping[str, Any]:
        if not self._envelope:
            return params
        return {**params, "_meta": {**params.get("_meta", {}), **self._envelope, **more}}

    def _headers(self, method: str, params: Mapping[str, Any]) -> Mapping[str, str]:
        return list_headers(method, params) if self.info.is_modern else {}


async def _run_quietly(work: Coroutine[Any, Any, object]) -> None:
    with contextlib.suppress(MountError, UpstreamRefusedError, TimeoutError):
        await work


def _shorter(seconds: float | None, milliseconds: Any) -> float | None:
    """Return the shorter of two times, of which the second is what a mounted server says."""
    if type(milliseconds) not in (int, float) or not 0 <= milliseconds < 2**53:
        return seconds
    told: float = milliseconds / 1_000
    return told if seconds is None else min(seconds, told)
