"""A watch that is interrupted begins again, and its subscribers hear that something may have changed meanwhile."""

import asyncio
from collections.abc import AsyncIterator

from toolgate.server.protocol.resource_updates import ResourceUpdates

URI = "bg://1/output"


class InterruptedWatchError(Exception):
    pass


class FakeSubscriber:
    """Stands in for a session."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    def notify_updated(self, uri: str) -> None:
        self.heard.put_nowait(uri)


def test_an_interrupted_watch_begins_again() -> None:
    opened = 0
    changed = asyncio.Event()

    async def changes() -> AsyncIterator[object]:
        nonlocal opened
        opened += 1
        if opened == 1:
            raise InterruptedWatchError
        while True:
            await changed.wait()
            changed.clear()
            yield None

    async def body() -> None:
        updates, subscriber = ResourceUpdates(lambda _, __: changes(), InterruptedWatchError), FakeSubscriber()
        async with asyncio.timeout(10):
            assert updates.subscribe(subscriber, "local", URI)
            assert await subscriber.heard.get() == URI
            changed.set()
            assert await subscriber.heard.get() == URI
            assert opened == 2
        updates.close()

    asyncio.run(body())
