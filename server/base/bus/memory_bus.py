"""Implement the bus of a server without other replicas in this process, with no task and no thread."""

import time
from collections import deque
from collections.abc import Callable

from toolgate.server.base.bus.bus import (
    MAX_DATA,
    BusHealth,
    MailHandler,
    StreamEntry,
    UndeliveredError,
    check_data,
    check_entry,
    check_name,
)
from toolgate.server.base.bus.local_topics import LocalTopics
from toolgate.server.base.bus.mail_handlers import MailHandlers
from toolgate.server.base.bus.memory_keys import MIN_SWEEP, MemoryKeys
from toolgate.server.base.bus.replica_ids import create_name
from toolgate.server.base.bus.settings import BusSettings, StreamLimits


class _KeyStreams:
    """The entries of one key's streams, oldest first."""

    __slots__ = ("end", "entries", "size")

    def __init__(self) -> None:
        self.entries: deque[tuple[str, int, bytes]] = deque()
        self.size = 0
        self.end = 0.0


class MemoryStreams:
    """The streams of one process. `now` is in seconds and never set back."""

    def __init__(self, limits: StreamLimits, now: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._now = now
        self._keys: dict[str, _KeyStreams] = {}
        self._sweep_at = MIN_SWEEP

    def append(self, key: str, stream: str, number: int, data: bytes) -> bool:
        check_name(key)
        check_entry(stream, number, data)
        if len(data) > MAX_DATA:
            return False
        streams = self._find(key) or self._add(key)
        streams.entries.append((stream, number, data))
        streams.size += len(data)
        streams.end = self._now() + self._limits.seconds
        while len(streams.entries) > 1 and (
            len(streams.entries) > self._limits.entries or streams.size > self._limits.size
        ):
            streams.size -= len(streams.entries.popleft()[2])
        return True

    async def read(self, key: str, stream: str, after: int = 0) -> list[StreamEntry]:
        check_name(stream)
        streams = self._find(key)
        entries = streams.entries if streams is not None else ()
        return [StreamEntry(number, data) for name, number, data in entries if name == stream and number > after]

    async def delete(self, key: str) -> None:
        self._keys.pop(key, None)

    async def flush(self) -> None:
        """Return at once: nothing waits."""

    def _find(self, key: str) -> _KeyStreams | None:
        streams = self._keys.get(key)
        if streams is not None and streams.end <= self._now():
            del self._keys[key]
            return None
        return streams

    def _add(self, key: str) -> _KeyStreams:
        if len(self._keys) >= self._sweep_at:
            now = self._now()
            self._keys = {name: streams for name, streams in self._keys.items() if streams.end > now}
            self._sweep_at = max(MIN_SWEEP, 2 * len(self._keys))
        self._keys[key] = _KeyStreams()
        return self._keys[key]


class MemoryReplica:
    """The only replica, which always lives."""

    def __init__(self) -> None:
        self.name = create_name()

    async def is_alive(self, name: str) -> bool:
        return name == self.name

    async def find_ended(self, name: str) -> bool:
        return name != self.name

    async def list_names(self) -> list[str]:
        return [self.name]

    def list_earlier(self) -> frozenset[str]:
        return frozenset()

    def holds_lease(self) -> bool:
        return True


class MemoryMail:
    """Mail of a replica to itself."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._handlers = MailHandlers()

    def receive(self, kind: str, handler: MailHandler) -> None:
        self._handlers.add(kind, handler)

    async def send(self, replica: str, kind: str, data: bytes, seconds: float = 5.0) -> bytes:
        check_name(kind)
        check_data(data)
        if replica != self._name:
            raise UndeliveredError(f"no replica {replica} reads its mail")
        return await self._handlers.answer(kind, data, seconds)


class MemoryBus:
    """A bus in memory."""

    def __init__(self, settings: BusSettings) -> None:
        self.replica = MemoryReplica()
        self.keys = MemoryKeys()
        self.streams = MemoryStreams(settings.streams)
        self.topics = LocalTopics()
        self.mail = MemoryMail(self.replica.name)

    def health(self) -> BusHealth:
        return BusHealth()

    async def start(self) -> None:
        """Return at once: there is nothing to connect to."""

    async def close(self) -> None:
        """Return at once: nothing is open."""
