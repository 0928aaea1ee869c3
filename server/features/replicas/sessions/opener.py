"""Open the sessions of each HTTP transport for all replicas: shared, or with a way to the one that has them."""

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from toolgate.server.base.bus.bus import Bus
from toolgate.server.base.bus.replica_ids import create_id_at
from toolgate.server.config.transports import HttpTransport
from toolgate.server.features.replicas.sessions.forwarded_posts import ForwardedPosts
from toolgate.server.features.replicas.sessions.redis_store import RedisSessionStore
from toolgate.server.protocol.dispatcher import Dispatcher
from toolgate.server.protocol.messages import Request
from toolgate.server.protocol.session import Session
from toolgate.tools.api.tool import Tool
from toolgate.transports.http.sessions.local_store import LocalSessionStore
from toolgate.transports.http.sessions.sessions import Sessions
from toolgate.transports.http.transport import PostForwarder


class SharedSessionOpener:
    """Opens the sessions of all replicas. Those that clients can't resume stay at one, which their id names.

    close: ends what a session has at this replica
    share: follows the subscriptions of a session here
    find_tool: returns the tool of a name
    """

    def __init__(
        self,
        bus: Bus,
        dispatcher: Dispatcher,
        *,
        close: Callable[[Session], None],
        share: Callable[[Session, Iterable[str]], Awaitable[None]],
        find_tool: Callable[[str], Tool | None],
        now: Callable[[], float],
    ) -> None:
        self._bus = bus
        self._dispatcher = dispatcher
        self._close = close
        self._share = share
        self._find_tool = find_tool
        self._now = now

    def __call__(self, row: HttpTransport, limits: dict[str, Any]) -> tuple[Sessions, PostForwarder | None]:
        bus = self._bus
        if not row.is_resumable:
            create_id = partial(create_id_at, bus.replica.name)
            local = Sessions(self._close, LocalSessionStore(), create_id=create_id, **limits)
            return local, ForwardedPosts(bus)
        of_all = {name: limits[name] for name in ("per_owner", "per_person") if name in limits}
        store = RedisSessionStore(
            bus,
            self._dispatcher,
            share=self._share,
            may_repeat=self._may_repeat,
            now=self._now,
            **of_all,
        )
        own = {name: limits[name] for name in limits.keys() - of_all.keys()}
        return Sessions(self._close, store, **own), None

    def _may_repeat(self, request: Request) -> bool:
        """Return whether a call that may have been carried out already may be made again."""
        tool = self._find_tool(request.params.get("name", ""))
        return request.method == "tools/call" and tool is not None and tool.annotations.idempotent
