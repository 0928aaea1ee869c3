"""Open the sessions of each HTTP transport for all replicas: shared, or with a way to the one that has them."""

from functools import partial
from typing import Any

from toolgate.server.base.bus.bus import Bus
from toolgate.server.base.bus.replica_ids import create_id_at
from toolgate.server.config.transports import HttpTransport
from toolgate.server.features.replicas.sessions.forwarded_posts import ForwardedPosts
from toolgate.server.features.replicas.sessions.redis_store import RedisSessionStore
from toolgate.server.methods import lifecycle
from toolgate.server.methods.server import Server
from toolgate.server.protocol.dispatcher import Dispatcher
from toolgate.server.protocol.messages import Request
from toolgate.transports.http.sessions.local_store import LocalSessionStore
from toolgate.transports.http.sessions.sessions import Sessions
from toolgate.transports.http.transport import PostForwarder


class SharedSessionOpener:
    """Opens the sessions of all replicas. Those that clients can't resume stay at one, which their id names."""

    def __init__(self, bus: Bus, server: Server, dispatcher: Dispatcher) -> None:
        self._bus = bus
        self._server = server
        self._dispatcher = dispatcher

    def __call__(self, row: HttpTransport, limits: dict[str, Any]) -> tuple[Sessions, PostForwarder | None]:
        bus, server = self._bus, self._server
        if not row.is_resumable:
            create_id = partial(create_id_at, bus.replica.name)
            local = Sessions(server.close_session, LocalSessionStore(), create_id=create_id, **limits)
            return local, ForwardedPosts(bus)
        of_all = {name: limits[name] for name in ("per_owner", "per_person") if name in limits}
        store = RedisSessionStore(
            bus,
            self._dispatcher,
            share=partial(lifecycle.share_session, server),
            may_repeat=self._may_repeat,
            now=server.now,
            **of_all,
        )
        own = {name: limits[name] for name in limits.keys() - of_all.keys()}
        return Sessions(server.close_session, store, **own), None

    def _may_repeat(self, request: Request) -> bool:
        """Return whether a call that may have been carried out already may be made again."""
        tool = self._server.registry.tools.get(request.params.get("name", ""))
        return request.method == "tools/call" and tool is not None and tool.annotations.idempotent
