"""Receive what is published to channels, over one connection that is subscribed to all of them.

Changes of one turn of the event loop are sent together. After a reconnect all channels are subscribed again. A PING a
second finds a dead connection, since nothing else need arrive.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from toolgate.server.base.bus.bus import MAX_MESSAGE
from toolgate.server.features.replicas.redis.commands import LATE, SLOWEST
from toolgate.server.features.replicas.redis.connection import PubSub, Redis, RedisServer
from toolgate.server.features.replicas.redis.link import RedisLink

PING_EVERY = 1.0  # seconds
BATCH = 1_000  # channels in one command: a replica that reconnects may have a hundred thousand
MAX_UNREAD = 16 * MAX_MESSAGE  # bytes that may be on their way before the reply to a PING
TURN = 64  # messages after which other work of the event loop comes first

log = logging.getLogger("toolgate.bus")


class _RedisChannel(msgspec.Struct, eq=False):
    """A channel that this process reads. `confirmed` is done while Redis sends its messages."""

    receive: Callable[[bytes], None]
    missed: Callable[[], None]
    confirmed: "asyncio.Future[None]"
    may_have_missed: bool = False


class RedisSubscriptions:
    """The connection for what arrives. `seconds` is the time limit of a reply."""

    def __init__(self, server: RedisServer, seconds: float) -> None:
        self._server = server
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._channels: dict[bytes, _RedisChannel] = {}
        self._subscribed: set[bytes] = set()  # sent over this connection
        self._awaited: dict[bytes, int] = {}  # SUBSCRIBE without a reply, by channel
        self._changed: set[bytes] = set()  # added or removed since the last were sent
        self._has_changes = asyncio.Event()
        self._pinged: float | None = None  # when the PING without a reply was sent
        self.link = RedisLink(server, "messages", self._serve, seconds)

    def add(self, channel: bytes, receive: Callable[[bytes], None], missed: Callable[[], None]) -> None:
        """Call `receive` with what is published to the channel from soon on, and `missed` when some may be lost."""
        added = self._channels[channel] = _RedisChannel(receive, missed, self._loop.create_future())
        if channel in self._subscribed and channel not in self._awaited:
            added.confirmed.set_result(None)
        self._note_change(channel)

    def remove(self, channel: bytes) -> None:
        removed = self._channels.pop(channel, None)
        if removed is not None:
            self._note_change(channel)
            if not removed.confirmed.done():
                removed.confirmed.set_result(None)

    async def confirm(self, channel: bytes) -> None:
        """Wait until messages of the channel arrive. Raises BusUnreachableError."""
        if channel not in self._channels:
            return
        if self.link.is_away_for(self._seconds):
            raise self.link.copy_failure()
        try:
            async with asyncio.timeout(self._seconds):
                await asyncio.shield(self._channels[channel].confirmed)
        except TimeoutError:
            raise self._server.unreachable(self.link.failure or TimeoutError(), self._seconds) from None

    async def close(self) -> None:
        await self.link.close()
        for channel in list(self._channels):
            self.remove(channel)

    async def _serve(self, client: Redis) -> None:
        """Use a new connection until it is lost."""
        self._subscribed.clear()
        self._awaited.clear()
        self._pinged = None
        for channel in self._channels.values():
            channel.may_have_missed = True
            if channel.confirmed.done():
                channel.confirmed = self._loop.create_future()
        self._changed = set(self._channels)
        self._has_changes.set()
        async with client.pubsub() as pubsub:
            await pubsub.connect()
            tasks = [self._loop.create_task(work(pubsub)) for work in (self._read, self._write)]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            raise next(error for error in ended if not isinstance(error, asyncio.CancelledError))

    def _note_change(self, channel: bytes) -> None:
        self._changed.add(channel)
        self._has_changes.set()

    async def _write(self, pubsub: PubSub) -> NoReturn:
        ping_at = self._loop.time() + PING_EVERY
        while True:
            try:
                async with asyncio.timeout_at(ping_at):
                    await self._has_changes.wait()
            except TimeoutError:
                ping_at = self._loop.time() + PING_EVERY
                await self._ping(pubsub)
            else:
                self._has_changes.clear()
                await self._send_changes(pubsub)

    async def _send_changes(self, pubsub: PubSub) -> None:
        changed, self._changed = self._changed, set()
        begun = [channel for channel in changed if channel in self._channels and channel not in self._subscribed]
        ended = [channel for channel in changed if channel in self._subscribed and channel not in self._channels]
        for channel in begun:
            self._awaited[channel] = self._awaited.get(channel, 0) + 1
        self._subscribed.difference_update(ended)
        self._subscribed.update(begun)
        for send, channels in ((pubsub.unsubscribe, ended), (pubsub.subscribe, begun)):
            for first in range(0, len(channels), BATCH):
                await send(*channels[first : first + BATCH])

    async def _ping(self, pubsub: PubSub) -> None:
        if self._is_silent():
            await asyncio.sleep(LATE)  # if this process did not run, the reply may be there, unread
            if self._is_silent():
                raise TimeoutError
        if self._pinged is None:
            self._pinged = self._loop.time()
            await pubsub.ping()

    def _is_silent(self) -> bool:
        """Return whether a PING has no reply within the time limit."""
        most = self._seconds + MAX_UNREAD / SLOWEST  # the reply comes after messages that are under way
        return self._pinged is not None and self._loop.time() - self._pinged > most

    async def _read(self, pubsub: PubSub) -> NoReturn:
        count = 0
        while True:
            self._handle(await pubsub.get_message(timeout=None))
            count += 1
            if count % TURN == 0:
                await asyncio.sleep(0)

    def _handle(self, message: dict[str, Any] | None) -> None:
        match message:
            case {"type": "message", "channel": bytes(name), "data": bytes(data)}:
                channel = self._channels.get(name)
                if channel is not None:
                    _call(channel.receive, data)
            case {"type": "subscribe", "channel": bytes(name)}:
                self._confirm(name)
            case {"type": "pong"}:
                self._pinged = None
            case _:
                return  # the reply to UNSUBSCRIBE

    def _confirm(self, name: bytes) -> None:
        """Note that a channel is subscribed, unless it was ended and begun again meanwhile."""
        awaited = self._awaited.pop(name, 1) - 1
        if awaited > 0:
            self._awaited[name] = awaited
            return
        channel = self._channels.get(name)
        if channel is None:
            return
        if not channel.confirmed.done():
            channel.confirmed.set_result(None)
        if channel.may_have_missed:
            channel.may_have_missed = False
            _call(channel.missed)


def _call(subscriber: Callable[..., None], *arguments: bytes) -> None:
    try:
        subscriber(*arguments)
    except Exception:
        log.exception("a message from Redis was not handled")
