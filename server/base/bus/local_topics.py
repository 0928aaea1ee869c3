"""Deliver messages to the subscribers of this process, each at once and in order."""

import logging
from collections.abc import Callable

import msgspec

from toolgate.server.base.bus.bus import MAX_MESSAGE, check_data, check_name

log = logging.getLogger("toolgate.bus")


class LocalSubscription(msgspec.Struct, eq=False):
    """A subscriber of one topic in this process."""

    receive: Callable[[bytes], None]
    missed: Callable[[], None]
    _topics: "LocalTopics"
    _topic: str

    async def confirm(self) -> None:
        """Return at once: there are no other replicas."""

    def close(self) -> None:
        self._topics.remove(self._topic, self)


class LocalTopics:
    """The subscribers of one process, by topic. A subscriber that raises loses that message alone."""

    def __init__(self) -> None:
        self._subscriptions: dict[str, dict[LocalSubscription, None]] = {}

    def publish(self, topic: str, data: bytes) -> None:
        check_name(topic)
        check_data(data, MAX_MESSAGE)
        self.deliver(topic, data)

    def subscribe(self, topic: str, receive: Callable[[bytes], None], missed: Callable[[], None]) -> LocalSubscription:
        check_name(topic)
        subscription = LocalSubscription(receive, missed, self, topic)
        self._subscriptions.setdefault(topic, {})[subscription] = None
        return subscription

    def has_subscribers(self, topic: str) -> bool:
        return topic in self._subscriptions

    def deliver(self, topic: str, data: bytes) -> None:
        for subscription in tuple(self._subscriptions.get(topic, ())):
            if subscription in self._subscriptions.get(topic, ()):  # an earlier one may have closed it
                _call(subscription.receive, data)

    def announce_loss(self, topic: str | None = None) -> None:
        """Tell the subscribers of one topic or of all that they may have missed messages."""
        topics = tuple(self._subscriptions) if topic is None else (topic,)
        for each in topics:
            for subscription in tuple(self._subscriptions.get(each, ())):
                if subscription in self._subscriptions.get(each, ()):
                    _call(subscription.missed)

    def remove(self, topic: str, subscription: LocalSubscription) -> None:
        subscriptions = self._subscriptions.get(topic, {})
        subscriptions.pop(subscription, None)
        if not subscriptions:
            self._subscriptions.pop(topic, None)


def _call(subscriber: Callable[..., None], *arguments: bytes) -> None:
    try:
        subscriber(*arguments)
    except Exception:
        log.exception("a subscriber failed")
