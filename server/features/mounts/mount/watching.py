"""Follow a resource of a mounted server as long as somebody is subscribed to it."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

from toolgate.server.features.mounts.mount.pool import SessionKey
from toolgate.server.features.mounts.upstream.errors import MountError, UpstreamRefusedError
from toolgate.server.features.mounts.upstream.session import UpstreamSession

UPDATED = "notifications/resources/updated"
LOOK = 5.0  # seconds between two looks at whether the conversation lives
AGAIN = 2.0  # seconds before a subscription is made again


class ResourceWatches:
    """The resources of one mount that are followed. `get_session(key)` returns an open conversation."""

    def __init__(self, get_session: Callable[[SessionKey], Any]) -> None:
        self._get_session = get_session
        self._changes: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    def note(self, method: str, params: dict[str, Any]) -> None:
        """Take what the mounted server tells."""
        if method == UPDATED:
            for change in self._changes.get(str(params.get("uri")), ()):
                change.set()

    async def watch(self, key: SessionKey, uri: str) -> AsyncIterator[object]:
        """Yield each time the mounted server says that the resource has changed, and when a new conversation was
        opened: it may have changed meanwhile."""
        change = asyncio.Event()
        self._changes[uri].add(change)
        try:
            is_first = True
            while True:
                with contextlib.suppress(MountError, UpstreamRefusedError, TimeoutError):
                    session = await self._get_session(key)
                    async with session.subscribe(uri):
                        if not is_first:
                            yield uri
                        is_first = False
                        async for _ in _wait_changes(session, change):
                            yield uri
                await asyncio.sleep(AGAIN)
        finally:
            self._changes[uri].discard(change)
            if not self._changes[uri]:
                del self._changes[uri]


async def _wait_changes(session: UpstreamSession, change: asyncio.Event) -> AsyncIterator[None]:
    """Yield at each change while the conversation lives."""
    while session.is_alive:
        try:
            async with asyncio.timeout(LOOK):
                await change.wait()
        except TimeoutError:
            continue
        change.clear()
        yield
