"""Rows about open streams of events: one event for all streams of a person, and streams at rest."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.bench.growth.measure import Row, Trial
from tests.bench.growth.stores import open_trial
from toolgate.server.features.events.delivery.streams import EventStreams
from toolgate.server.features.events.log.cursors import CursorCoder
from toolgate.server.features.events.log.log import EventLog
from toolgate.server.features.events.log.rows import EventFilter
from toolgate.server.protocol.messages import encode
from toolgate.server.state.keys.file import KeyFile
from toolgate.tools.api.event import event

NEVER = 1e6  # seconds
BEAT = 0.5


class BuildPayload(msgspec.Struct):
    number: int


@event(payload=BuildPayload)
def built() -> None:
    """A build has ended."""


class Reader:
    """The channel of a stream, which encodes what it is sent."""

    can_ask = is_full = False

    def __init__(self) -> None:
        self.count = 0
        self.came = asyncio.Event()

    def send(self, message: Any) -> None:
        encode(message)
        self.count += 1
        self.came.set()

    def pause(self) -> None:
        pass

    async def wait_for(self, count: int) -> None:
        while self.count < count:
            self.came.clear()
            await self.came.wait()


@contextmanager
def open_streams(
    folder: Path, principals: list[str], heartbeat: float
) -> Generator[tuple[asyncio.Runner, EventLog, list[Reader]]]:
    """Yield an event loop, a log, and a reader of an open stream for each of the principals."""
    with open_trial(folder) as (runner, store):
        log = EventLog(store)
        streams = EventStreams(log, CursorCoder(KeyFile(folder / "keys" / "event-cursor")), heartbeat)
        readers = [Reader() for _ in principals]
        running = list[asyncio.Task[Any]]()

        async def open_all() -> None:
            for principal, reader in zip(principals, readers, strict=True):
                wanted = EventFilter(principal, built.name, "{}")
                stream = streams.open(1, reader, wanted, None, is_shared=False, is_declared=True)
                running.append(asyncio.create_task(stream.run(None, 0.0)))
                await reader.wait_for(1)

        async def close_all() -> None:
            streams.end_all()
            await asyncio.gather(*running)
            for reader in readers:
                assert reader.count

        runner.run(open_all())
        yield runner, log, readers
        runner.run(close_all())


@contextmanager
def beside_streams(folder: Path, size: int) -> Generator[Trial]:
    """Yield a trial that records an event and waits until each of `size` streams of its person has sent it."""
    with open_streams(folder, ["ada"] * size, NEVER) as (runner, log, readers):

        async def act() -> None:
            count = readers[0].count + 1
            await log.emit("ada", built, BuildPayload(count))
            for reader in readers:
                await reader.wait_for(count)

        yield Trial(lambda: runner.run(act()))


@contextmanager
def at_rest(folder: Path, size: int) -> Generator[Trial]:
    """Yield a trial that waits for a heartbeat of `size` streams, of a quarter as many people."""
    with open_streams(folder, [f"u-{number // 4}" for number in range(size)], BEAT) as (runner, _, readers):
        yield Trial(lambda: runner.run(readers[-1].wait_for(readers[-1].count + 1)))


ROWS = (
    Row("an event for n streams of one person", 4, beside_streams, most=0.9),
    Row("a heartbeat of n streams at rest", 60, at_rest, most=1.0, actions=3),
)
