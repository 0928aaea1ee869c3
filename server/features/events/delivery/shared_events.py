"""Tell the other replicas of events and subscriptions, and divide the deliveries by webhook among them.

Each replica knows all subscriptions. Of those that live, one delivers for each: the one whose name and the id have the
highest digest. When a replica comes or goes, few subscriptions move. While replicas do not yet agree on who lives, two
may send the same event, under the same id.
"""

import asyncio
import hashlib
import logging
from collections.abc import Collection, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from toolgate.server.base.bus.bus import Bus, BusUnreachableError
from toolgate.server.base.errors import StateError
from toolgate.server.features.events.delivery.streams import EventStreams
from toolgate.server.features.events.log.log import EventLog

if TYPE_CHECKING:
    from toolgate.server.features.events.delivery.subscriptions import EventSubscriptions

NEWS = "events"  # topic

log = logging.getLogger("toolgate.events")


class EventNews(msgspec.Struct, frozen=True, omit_defaults=True):
    """What another replica should look at: the events of a principal of this type or, if `is_changed`, its
    subscriptions to them, of which `ended` are gone."""

    replica: str
    principal: str
    type: str
    is_changed: bool = False
    ended: list[str] = []


class SharedEvents:
    """The events of all replicas. `subscriptions` is None where webhooks are not open."""

    def __init__(
        self, bus: Bus, events: EventLog, streams: EventStreams, subscriptions: "EventSubscriptions | None"
    ) -> None:
        self._bus = bus
        self._log = events
        self._streams = streams
        self._subscriptions = subscriptions
        self._living = frozenset((bus.replica.name,))
        self._work: set[asyncio.Task[None]] = set()
        events.publish = self._publish
        if subscriptions is not None:
            subscriptions.share(self._is_own, self._publish_change)
        bus.topics.subscribe(NEWS, self._receive, self._look_again)

    async def find_living(self) -> None:
        """Learn which replicas live, before the first deliveries."""
        try:
            self._living = frozenset((*await self._bus.replica.list_names(), self._bus.replica.name))
        except BusUnreachableError as error:
            log.warning("deliveries are not shared with other servers yet: %s", error)

    def note_living(self, names: Collection[str]) -> None:
        """Take over the subscriptions of a replica that has ended, and leave some to a new one."""
        before, self._living = self._living, frozenset((*names, self._bus.replica.name))
        if self._living != before:
            self._look_again()

    def _is_own(self, subscription: str) -> bool:
        """Return whether this replica delivers for a subscription."""

        def rank(name: str) -> bytes:
            return hashlib.sha256(f"{name} {subscription}".encode()).digest()

        return max(self._living, key=rank) == self._bus.replica.name

    def _publish(self, principal: str, type: str) -> None:
        self._send(EventNews(self._bus.replica.name, principal, type))

    def _publish_change(self, principal: str, type: str, ended: Collection[str]) -> None:
        self._send(EventNews(self._bus.replica.name, principal, type, is_changed=True, ended=list(ended)))

    def _send(self, news: EventNews) -> None:
        self._bus.topics.publish(NEWS, msgspec.msgpack.encode(news))

    def _receive(self, data: bytes) -> None:
        news = msgspec.msgpack.decode(data, type=EventNews)
        if news.replica == self._bus.replica.name:
            return
        if not news.is_changed:
            self._log.wake(news.principal, news.type)
        elif self._subscriptions is not None:
            self._begin(self._follow(self._subscriptions, news))

    def _look_again(self) -> None:
        """Look for all events and subscriptions: news may have been lost."""
        self._streams.wake_all()
        if self._subscriptions is not None:
            self._begin(self._subscriptions.run_start())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def close(self) -> None:
        """Follow no change any more."""
        for task in (work := list(self._work)):
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)

    async def _follow(self, subscriptions: "EventSubscriptions", news: EventNews) -> None:
        try:
            await subscriptions.follow(news.principal, news.type, news.ended)
        except StateError as error:
            log.warning("a change of subscriptions at another server is not known here: %s", error)
