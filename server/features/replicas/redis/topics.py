"""Deliver messages of a topic to subscribers here at once, and to those of other replicas through Redis."""

from collections.abc import Callable
from functools import partial

import msgspec

from toolgate.server.base.bus.local_topics import LocalSubscription, LocalTopics
from toolgate.server.features.replicas.redis.subscriptions import RedisSubscriptions
from toolgate.server.features.replicas.redis.write_behind import WriteBehind


class RedisSubscription(msgspec.Struct, eq=False):
    """A subscriber of this process, and the channel that all subscribers of the topic share."""

    _topics: "RedisTopics"
    _topic: str
    _local: LocalSubscription

    async def confirm(self) -> None:
        await self._topics.confirm(self._topic)

    def close(self) -> None:
        self._local.close()
        self._topics.leave(self._topic)


class RedisTopics:
    """The topics whose channels begin with `prefix`. `name` is this replica's, which begins its messages."""

    def __init__(self, name: str, subscriptions: RedisSubscriptions, write_behind: WriteBehind, prefix: str) -> None:
        self._name = name.encode()
        self._subscriptions = subscriptions
        self._write_behind = write_behind
        self._prefix = prefix
        self._local = LocalTopics()
        write_behind.on_loss = self._publish_loss
        subscriptions.add(self._loss_channel.encode(), self._receive_loss, self._do_nothing)

    def publish(self, topic: str, data: bytes) -> None:
        self._local.publish(topic, data)
        self._write_behind.publish(self._channel(topic), self._name + data)

    def subscribe(self, topic: str, receive: Callable[[bytes], None], missed: Callable[[], None]) -> RedisSubscription:
        is_first = not self._local.has_subscribers(topic)
        local = self._local.subscribe(topic, receive, missed)
        if is_first:
            channel = self._channel(topic).encode()
            self._subscriptions.add(channel, partial(self._receive, topic), partial(self._local.announce_loss, topic))
        return RedisSubscription(self, topic, local)

    async def confirm(self, topic: str) -> None:
        """Raises BusUnreachableError."""
        await self._subscriptions.confirm(self._channel(topic).encode())

    def leave(self, topic: str) -> None:
        """End the subscription of a topic without subscribers."""
        if not self._local.has_subscribers(topic):
            self._subscriptions.remove(self._channel(topic).encode())

    def _channel(self, topic: str) -> str:
        return f"{self._prefix}topic:{topic}"

    @property
    def _loss_channel(self) -> str:
        return f"{self._prefix}loss"  # read by all replicas

    def _receive(self, topic: str, data: bytes) -> None:
        if not data.startswith(self._name):  # its own were delivered at once
            self._local.deliver(topic, data[len(self._name) :])

    def _publish_loss(self) -> None:
        self._write_behind.publish(self._loss_channel, self._name)

    def _receive_loss(self, data: bytes) -> None:
        if not data.startswith(self._name):
            self._local.announce_loss()

    def _do_nothing(self) -> None:
        """Each topic's own channel tells of what a reconnect lost."""
