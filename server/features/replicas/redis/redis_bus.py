"""Put the parts of a bus on Redis together, report their health, and close them in order."""

import asyncio
import logging
from collections.abc import Callable

from toolgate.server.base.bus.bus import BusHealth, BusUnreachableError
from toolgate.server.base.bus.settings import BusSettings
from toolgate.server.features.replicas.redis.commands import RedisCommands
from toolgate.server.features.replicas.redis.connection import RedisServer
from toolgate.server.features.replicas.redis.keys import RedisKeys
from toolgate.server.features.replicas.redis.mail import RedisMail
from toolgate.server.features.replicas.redis.replica import RedisReplica
from toolgate.server.features.replicas.redis.streams import RedisStreams
from toolgate.server.features.replicas.redis.subscriptions import RedisSubscriptions
from toolgate.server.features.replicas.redis.topics import RedisTopics
from toolgate.server.features.replicas.redis.write_behind import WriteBehind
from toolgate.server.features.replicas.redis_url import RedisUrl

log = logging.getLogger("toolgate.bus")


class RedisBus:
    """A bus on Redis. It connects by itself, now and after each loss. Raises ValueError for an invalid URL."""

    def __init__(self, url: RedisUrl, settings: BusSettings, on_lost: Callable[[], None]) -> None:
        server, prefix = RedisServer(url), settings.prefix
        self._on_lost = on_lost
        self._commands = RedisCommands(server, settings.command)
        self._subscriptions = RedisSubscriptions(server, settings.command)
        self._write_behind = WriteBehind(self._commands, settings.streams, settings.max_unwritten)
        self.replica = RedisReplica(
            self._commands, prefix, settings.lease, self._note_lost, meets_earlier=settings.meets_earlier
        )
        self.keys = RedisKeys(self._commands, prefix)
        self.streams = RedisStreams(server, self._commands, self._write_behind, settings)
        self.topics = RedisTopics(self.replica.name, self._subscriptions, self._write_behind, prefix)
        self.mail = RedisMail(self._commands, self._subscriptions, self.replica, prefix)
        self._commands.on_connected = self._note_connected

    async def start(self) -> None:
        """Wait until the lease is held and mail arrives, or the first try to connect has failed."""
        links = self._commands.link, self._subscriptions.link
        await asyncio.gather(*(link.wait_first_try() for link in links))
        if all(link.failure is None for link in links):
            try:
                await self.mail.confirm()
                await self.replica.renew()
            except BusUnreachableError as error:
                log.warning("%s", error)

    def health(self) -> BusHealth:
        links = self._commands.link, self._subscriptions.link
        away = [link.since for link in links if link.failure is not None]
        since = min(away) if away else max(link.since for link in links)
        return BusHealth(
            is_reachable=not away,
            seconds=asyncio.get_running_loop().time() - since,
            latency=self._commands.latency,
            lease_age=self.replica.lease_age,
            lag=self._write_behind.lag,
            unwritten=self._write_behind.size,
            dropped=self._write_behind.dropped,
        )

    async def close(self) -> None:
        await self.mail.close()
        try:
            await self.streams.flush()
        except BusUnreachableError as error:
            log.warning("the newest entries of streams are lost: %s", error)
        await self._write_behind.close()
        await self.replica.close()
        await self._subscriptions.close()
        await self._commands.close()

    def _note_lost(self) -> None:
        """Write nothing any more: another replica may have taken over."""
        self._write_behind.stop()
        self._on_lost()

    def _note_connected(self) -> None:
        self.replica.renew_soon()
        self._write_behind.retry()
