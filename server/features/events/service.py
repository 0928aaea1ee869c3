"""Hold the parts of events that the methods of one server share."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING

from toolgate.server.features.events.delivery.streams import HEARTBEAT, EventStreams
from toolgate.server.features.events.log.cursors import CursorCoder
from toolgate.server.features.events.log.errors import EventError
from toolgate.server.features.events.log.log import EventLog
from toolgate.server.features.events.log.rows import EventLimits
from toolgate.server.features.events.sources.command_ends import CommandEnds
from toolgate.server.features.events.sources.sources import EventSources
from toolgate.server.features.events.sources.types import EVENTS
from toolgate.server.features.events.sources.watchers import EventWatchers
from toolgate.server.state.keys.sealing_keys import SealingKeys
from toolgate.server.state.store import Store
from toolgate.tools.api.event import find_break
from toolgate.tools.api.registry import Registry
from toolgate.tools.workspace.workspaces import Workspaces

if TYPE_CHECKING:
    from toolgate.server.base.bus.bus import Bus
    from toolgate.server.base.principals.principal import GrantKey
    from toolgate.server.features.events.delivery.shared_events import SharedEvents
    from toolgate.server.features.events.delivery.subscription_request import SubscriptionLimits
    from toolgate.server.features.events.delivery.subscriptions import EventSubscriptions
    from toolgate.server.features.events.webhooks.retry_schedule import RetrySchedule
    from toolgate.server.features.events.webhooks.sender import WebhookSender

log = logging.getLogger("toolgate.events")


class EventService:
    """The events of one server.

    keys: the server's keys
    serves: whether this process serves a principal
    prepare: brings a principal's workspace to where it is looked at, with nodes
    heartbeat: seconds between two heartbeats of a stream
    now: seconds since the epoch
    """

    def __init__(
        self,
        store: Store,
        keys: SealingKeys,
        workspaces: Workspaces,
        serves: Callable[[str], bool],
        limits: EventLimits | None = None,
        *,
        prepare: Callable[[str], Awaitable[None]] | None = None,
        heartbeat: float = HEARTBEAT,
        now: Callable[[], float] | None = None,
    ) -> None:
        self.now = now or store.now
        self.subscriptions: EventSubscriptions | None = None  # until webhooks are open
        self.shared: SharedEvents | None = None  # with the other replicas
        self._keys = keys
        self._workspaces = workspaces
        self.log = EventLog(store, limits, self.now)
        self.cursors = CursorCoder(keys.find("event-cursor"))
        self.streams = EventStreams(self.log, self.cursors, heartbeat)
        self.sources = EventSources(self.log)
        self.ends = CommandEnds(self.log, workspaces, serves)
        self.watchers = EventWatchers(self.log, workspaces.get_or_open, workspaces.watch_path, serves, prepare)

    def open_webhooks(
        self,
        sender: "WebhookSender",
        find_valid: "Callable[[Collection[GrantKey]], Awaitable[Collection[GrantKey]]]",
        limits: "SubscriptionLimits | None" = None,
        schedule: "RetrySchedule | None" = None,
    ) -> None:
        """Deliver by webhook, too. `find_valid(grants)` returns those that still allow access. Come before `run`."""
        # start-up: stdio has no webhooks
        from toolgate.server.features.events.delivery.subscriptions import EventSubscriptions

        key = self._keys.find("event-secrets")
        self.subscriptions = EventSubscriptions(self.log, self.cursors, sender, key, find_valid, limits, schedule)

    def share(self, bus: "Bus") -> "SharedEvents":
        """Share events with the other replicas of the bus. Comes after `open_webhooks`."""
        # start-up: only replicas have it
        from toolgate.server.features.events.delivery.shared_events import SharedEvents

        self.shared = SharedEvents(bus, self.log, self.streams, self.subscriptions)
        return self.shared

    async def run_deliveries(self) -> None:
        """Go on with the deliveries of earlier servers."""
        if self.shared is not None:
            await self.shared.find_living()
        if self.subscriptions is not None:
            await self.subscriptions.run_start()

    async def run(self) -> None:
        """Do what is due at intervals, until cancelled."""
        self._workspaces.follow_lives(self.ends.search)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.log.run_sweeps())
            group.create_task(self.watchers.run_refreshes())

    async def forget(self, principal: str) -> None:
        """End all that a principal waits for, and drop its events."""
        self.streams.terminate_principal(principal)
        self.watchers.forget(principal)
        if self.subscriptions is not None:
            await self.subscriptions.terminate_principal(principal)
        await self.log.forget(principal)

    def bind_types(self, registry: Registry) -> None:
        """Take the events that plugins and other features emit."""
        for type in registry.events.values():
            if type not in EVENTS:
                type.sink = partial(self.log.take_event, type)

    def follow_registry(self, before: Registry, after: Registry) -> None:
        """End the streams and subscriptions of types that are gone, or whose schemas no longer fit."""
        for name, old in before.events.items():
            new = after.events.get(name)
            broken = None if new is None else find_break(old, new)
            if new is None:
                self._terminate_type(name, EventError("NotFound", f"the event {name} is gone", kind="event"))
            elif broken is not None:
                message = f"the {broken} of {name} has changed"
                self._terminate_type(name, EventError("Unsupported", message, feature=broken, reason="schema_changed"))

    def _terminate_type(self, name: str, error: EventError) -> None:
        self.streams.terminate_type(name, error)
        if self.subscriptions is not None:
            self.log.run_soon(self.subscriptions.terminate_type(name, error))

    def rights(self) -> Iterator["GrantKey"]:
        """Yield what the access of each stream and subscription depends on."""
        yield from self.streams.rights()
        if self.subscriptions is not None:
            yield from self.subscriptions.rights()

    async def terminate_rights(self, rights: Collection["GrantKey"]) -> None:
        """End the streams and subscriptions of revoked grants."""
        self.streams.terminate_rights(rights)
        if self.subscriptions is not None:
            await self.subscriptions.terminate_rights(rights)

    async def close(self) -> None:
        """Record what has just happened, and watch for nothing more."""
        if self.shared is not None:
            await self.shared.close()
        await self.watchers.close()
        await self.ends.close()
        await self.log.close()
        if self.subscriptions is not None:
            await self.subscriptions.close()
