"""What many streams read of the state: an event once for all streams of one person, at rest nothing for each stream."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from tests.clients.raw_client import PATIENCE
from tests.server.state.each_store import ON_EACH, open_store
from toolgate.server.features.events.delivery.streams import EventStreams
from toolgate.server.features.events.log.cursors import CursorCoder
from toolgate.server.features.events.log.log import EventLog
from toolgate.server.features.events.log.rows import EventFilter, EventLimits
from toolgate.server.protocol.messages import Notification
from toolgate.server.state.keys.file import KeyFile
from toolgate.server.state.store import Store
from toolgate.tools.api.event import event

NEVER = 1e6  # seconds
SOON = 0.05


class BuildPayload(msgspec.Struct):
    number: int


@event(payload=BuildPayload)
def built() -> None:
    """A build has ended."""


class CountedStore:
    """A store that counts what is read and changed in it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reads = self.transactions = 0

    async def read(self, function: Any) -> Any:
        self.reads += 1
        return await self._store.read(function)

    async def transact(self, function: Any, **options: Any) -> Any:
        self.transactions += 1
        return await self._store.transact(function, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Reader:
    """The channel of a stream: it keeps what it is sent."""

    can_ask = is_full = False

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Notification] = asyncio.Queue()

    def send(self, message: Any) -> None:
        self._messages.put_nowait(message)

    def pause(self) -> None:
        pass

    async def next(self, kind: str) -> Any:
        """Return the parameters of the next message of a kind."""
        async with asyncio.timeout(PATIENCE):
            while (message := await self._messages.get()).method != f"notifications/events/{kind}":
                assert not message.method.endswith("error")
            return message.params

    def count_left(self, kind: str) -> int:
        """Return how many messages of a kind were not read yet."""
        left = [self._messages.get_nowait() for _ in range(self._messages.qsize())]
        return sum(message.method == f"notifications/events/{kind}" for message in left)


class World:
    """A server's log and streams in a folder."""

    def __init__(
        self, folder: Path, heartbeat: float, limits: EventLimits | None, now: Callable[[], float] | None
    ) -> None:
        self.store = CountedStore(open_store(folder))
        self.log = EventLog(self.store, limits, now)  # type: ignore[arg-type]
        self.streams = EventStreams(self.log, CursorCoder(KeyFile(folder / "keys" / "event-cursor")), heartbeat)
        self._running: list[asyncio.Task[Any]] = []

    async def open(self, principal: str) -> Reader:
        """Open a stream of a principal, and return its reader once it is active."""
        reader = Reader()
        wanted = EventFilter(principal, built.name, "{}")
        stream = self.streams.open(1, reader, wanted, None, is_shared=True, is_declared=True)
        self._running.append(asyncio.create_task(stream.run(None, 0.0)))
        await reader.next("active")
        return reader

    async def emit(self, principal: str, number: int) -> None:
        await self.log.emit(principal, built, BuildPayload(number))

    async def close(self) -> None:
        self.streams.end_all()
        await asyncio.gather(*self._running)
        await self.log.close()
        await self.store.aclose()


def run(
    folder: Path,
    body: Callable[[World], Coroutine[Any, Any, None]],
    heartbeat: float = NEVER,
    limits: EventLimits | None = None,
    now: Callable[[], float] | None = None,
) -> None:
    async def main() -> None:
        world = World(folder, heartbeat, limits, now)
        try:
            await body(world)
        finally:
            with suppress(TimeoutError):
                await asyncio.wait_for(world.close(), PATIENCE)

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE))


@ON_EACH
def test_an_event_is_read_once_for_all_streams_of_one_person(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        readers = [await world.open("ada") for _ in range(30)]
        world.store.reads = world.store.transactions = 0
        await world.emit("ada", 1)
        received = [await reader.next("event") for reader in readers]
        assert [each["data"] for each in received] == [received[0]["data"]] * 30
        assert len({each["cursor"] for each in received}) == 1
        assert (world.store.reads, world.store.transactions) == (1, 1)  # one transaction records it

    run(tmp_path, body)


@ON_EACH
def test_streams_that_share_reads_miss_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        readers = [await world.open(who) for who in ("ada", "bob") for _ in range(10)]
        for number in range(30):
            await asyncio.gather(world.emit("ada", number), world.emit("bob", 100 + number))
        for place, reader in enumerate(readers):
            first = 0 if place < 10 else 100
            numbers = [msgspec.json.decode((await reader.next("event"))["data"])["number"] for _ in range(30)]
            assert numbers == list(range(first, first + 30))
            assert not reader.count_left("event")

    run(tmp_path, body)


@ON_EACH
def test_a_heartbeat_reads_once_for_all_streams_and_changes_nothing(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        readers = [await world.open(f"person {number // 4}") for number in range(40)]
        await world.emit("person 1", 1)
        for reader in readers[4:8]:
            await reader.next("event")
        first, *others = readers
        await first.next("heartbeat")  # the heartbeats of streams that opened later have passed
        first.count_left("heartbeat")
        world.store.reads = world.store.transactions = 0
        for reader in others:
            reader.count_left("heartbeat")
            await reader.next("heartbeat")
            await reader.next("heartbeat")
        reads, transactions = world.store.reads, world.store.transactions
        beats = 1 + first.count_left("heartbeat")  # the first one's read follows it
        assert (transactions, reads <= beats) == (0, True)

    run(tmp_path, body, SOON)


@ON_EACH
def test_a_heartbeat_finds_what_another_process_has_recorded(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        ada, bob = await world.open("ada"), await world.open("bob")
        other = open_store(tmp_path)
        try:
            await EventLog(other).emit("ada", built, BuildPayload(7))
            assert msgspec.json.decode((await ada.next("event"))["data"]) == {"number": 7}
            await bob.next("heartbeat")
            assert not bob.count_left("event")
        finally:
            await other.aclose()

    run(tmp_path, body, SOON)


@ON_EACH
def test_an_open_stream_renews_its_interest(tmp_path: Path) -> None:
    time = [1_000.0]

    async def body(world: World) -> None:
        ada = await world.open("ada")
        for number in range(5):
            time[0] += 60.0  # less than the age; all together more
            before = world.store.transactions
            while world.store.transactions == before:
                await ada.next("heartbeat")
            await world.emit("ada", number)
            assert msgspec.json.decode((await ada.next("event"))["data"]) == {"number": number}

    run(tmp_path, body, SOON, EventLimits(age=100.0), lambda: time[0])
