"""Write entries and messages to Redis behind their producers, who never wait.

What comes in one turn of the event loop, or while an earlier write has no reply, goes in one write. While Redis is away
all waits in order, of each key no more than Redis would hold, of all keys a number of bytes; what finds no room is
dropped and counted. A write whose reply is lost is repeated, so readers skip entries that they have.
"""

import asyncio
import contextlib
import math
from collections import OrderedDict, deque
from collections.abc import Callable

import msgspec

from toolgate.server.base.bus.settings import StreamLimits
from toolgate.server.features.replicas.redis.commands import RedisCommands, Words

MAX_BATCH = 2**20  # bytes of one write: others' commands wait behind it for milliseconds
OVERHEAD = 200  # bytes in memory of what waits, besides its data
PAUSE = 0.5  # seconds after a refused write

APPEND = """
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local at = 0
if last then
    local begin, size = string.match(last[1], '(%d+)-(%d+)')
    at = begin + size
end
local size = 0
for number = 4, #ARGV, 3 do
    size = #ARGV[number + 2]
    local id = string.format('%.0f-%.0f', at, size)
    redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[1], id, 's', ARGV[number], 'n', ARGV[number + 1], 'd', ARGV[number + 2])
    at = at + size
end
local first = math.min(at - tonumber(ARGV[2]), at - size)
if first > 0 then redis.call('XTRIM', KEYS[1], 'MINID', string.format('%.0f', first)) end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
"""  # the id of an entry is the bytes before it and its own: so one command drops what is over the limit of bytes


class _PendingWrite(msgspec.Struct, eq=False):
    """An entry of a stream, or with `number` 0 a message to the channel `key`."""

    key: str
    stream: str
    number: int
    data: bytes
    since: float
    order: int
    is_deleted: bool = False  # while it was being written: it is not repeated

    @property
    def size(self) -> int:
        return len(self.data) + OVERHEAD


class _WaitingEntries:
    """The entries of one key that wait, by their order, and the bytes of their data."""

    __slots__ = ("orders", "size")

    def __init__(self) -> None:
        self.orders: deque[int] = deque()
        self.size = 0

    def is_full(self, size: int, limits: StreamLimits) -> bool:
        """Return whether a key would not hold so many bytes more."""
        return len(self.orders) >= limits.entries or self.size + size > limits.size


class WriteBehind:
    """What waits for Redis. `on_loss` is called when messages were dropped and Redis takes them again."""

    def __init__(self, commands: RedisCommands, limits: StreamLimits, max_size: int) -> None:
        self._commands = commands
        self._limits = limits
        self._max_size = max_size
        self._loop = asyncio.get_running_loop()
        self._waiting: OrderedDict[int, _PendingWrite] = OrderedDict()  # by order
        self._by_key: dict[str, _WaitingEntries] = {}  # those of streams
        self._writing: list[_PendingWrite] = []
        self._last = 0  # order of the newest
        self._has_work = asyncio.Event()
        self._progress = asyncio.Event()
        self._has_lost_messages = False
        self.size = 0
        self.dropped = 0
        self.on_loss: Callable[[], None] = lambda: None
        self._task = self._loop.create_task(self._run(), name="Redis: write behind")

    @property
    def lag(self) -> float:
        """Seconds that the oldest entry or message has waited."""
        oldest = self._oldest()
        return self._loop.time() - oldest.since if oldest is not None else 0.0

    def append(self, key: str, stream: str, number: int, data: bytes) -> bool:
        """Write an entry soon. Return False if there is no room."""
        entries = self._by_key.get(key)
        if entries is not None:
            while entries.orders and entries.is_full(len(data), self._limits):
                self._forget(entries.orders[0])  # Redis would drop it when this one is written
        if not self._add(key, stream, number, data):
            return False
        entries = self._by_key.setdefault(key, _WaitingEntries())
        entries.orders.append(self._last)
        entries.size += len(data)
        return True

    def publish(self, channel: str, data: bytes) -> None:
        """Publish a message soon. If there is no room, all subscribers learn later that they missed something."""
        if not self._add(channel, "", 0, data):
            self._has_lost_messages = True

    def discard(self, key: str) -> None:
        """Drop the entries of a key that wait. Those that are being written are not repeated."""
        for write in self._writing:
            write.is_deleted |= write.key == key
        while key in self._by_key:
            self._forget(self._by_key[key].orders[0])
        self._progress.set()

    def retry(self) -> None:
        """Try to write now: Redis is connected again."""
        self._progress.set()

    async def flush(self, seconds: float) -> None:
        """Wait until what waits now is written. Raises TimeoutError."""
        last = self._last
        async with asyncio.timeout(seconds):
            while (oldest := self._oldest()) is not None and oldest.order <= last:
                self._progress.clear()
                await self._progress.wait()

    def stop(self) -> None:
        """Drop what waits, and accept nothing more."""
        self._task.cancel()
        self._max_size = self.size = 0
        self.dropped += len(self._waiting) + len(self._writing)
        self._writing.clear()
        self._waiting.clear()
        self._by_key.clear()
        self._progress.set()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    def _oldest(self) -> _PendingWrite | None:
        return self._writing[0] if self._writing else next(iter(self._waiting.values()), None)

    def _add(self, key: str, stream: str, number: int, data: bytes) -> bool:
        size = len(data) + OVERHEAD
        if (self.size or not self._max_size) and self.size + size > self._max_size:
            self.dropped += 1
            return False
        self._last += 1
        self.size += size
        self._waiting[self._last] = _PendingWrite(key, stream, number, data, self._loop.time(), self._last)
        self._has_work.set()
        return True

    def _forget(self, order: int) -> None:
        """Drop an entry that waits, the oldest of its key."""
        self.size -= self._remove(order).size

    def _remove(self, order: int) -> _PendingWrite:
        """Remove what waits from the queue, an entry as the oldest of its key."""
        write = self._waiting.pop(order)
        if write.number:
            entries = self._by_key[write.key]
            entries.orders.popleft()
            entries.size -= len(write.data)
            if not entries.orders:
                del self._by_key[write.key]
        return write

    async def _run(self) -> None:
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            while self._waiting or self._writing:
                if not self._writing:
                    self._take_batch()
                if not await self._write_batch():
                    await self._pause()

    def _take_batch(self) -> None:
        size = 0
        while self._waiting:
            order, write = next(iter(self._waiting.items()))
            size += write.size
            if size > MAX_BATCH and self._writing:
                return
            self._writing.append(self._remove(order))

    async def _write_batch(self) -> bool:
        """Write the batch, and return whether all of it was written. Otherwise the rest of it comes next."""
        groups: dict[str | int, list[_PendingWrite]] = {}  # the entries of each key, and each message
        for write in self._writing:
            groups.setdefault(write.key if write.number else write.order, []).append(write)
        replies = [self._commands.run(*self._format_command(group)) for group in groups.values()]
        results = await asyncio.gather(*replies, return_exceptions=True)
        failures: list[_PendingWrite] = []
        for group, result in zip(groups.values(), results, strict=True):
            if isinstance(result, BaseException):
                failures.extend(write for write in group if not write.is_deleted)
        self.size -= sum(write.size for write in self._writing) - sum(write.size for write in failures)
        self._writing = sorted(failures, key=lambda write: write.order)
        self._progress.set()
        if not failures and self._has_lost_messages:
            self._has_lost_messages = False
            self.on_loss()
        return not failures

    def _format_command(self, group: list[_PendingWrite]) -> Words:
        first = group[0]
        if not first.number:
            return "PUBLISH", first.key, first.data
        words: list[str | bytes | int] = []
        for write in group:
            words += (write.stream, write.number, write.data)
        limits = self._limits
        milliseconds = math.ceil(limits.seconds * 1_000)
        return "EVAL", APPEND, 1, first.key, limits.entries, limits.size, milliseconds, *words

    async def _pause(self) -> None:
        """Wait until Redis is connected again, or some time."""
        self._progress.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PAUSE):
                await self._progress.wait()
