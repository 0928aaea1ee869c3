"""Who wants to be told when a resource changes, and the watches that find out. Knows nothing of how they are told.

A watch (Resource.watch) runs once a principal and URI, while somebody there is subscribed. News of one URI goes out at
once, and then at most every `PAUSE`: what changes faster than a client reads it again would only fill queues.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Protocol

log = logging.getLogger("toolgate.updates")

PAUSE = 0.25  # seconds between two notifications of one URI
MAX_SUBSCRIPTIONS = 1_000  # of one subscriber; each may cost a watch


class Subscriber(Protocol):
    """Whoever wants to know: a session, or an open subscription."""

    def updated(self, uri: str) -> None: ...


class Paced:
    """Calls `tell` for news: for the first at once, then at most every PAUSE."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._resting: asyncio.TimerHandle | None = None  # news went out a moment ago
        self._changed = False  # since then

    def changed(self) -> None:
        if self._resting is not None:
            self._changed = True
            return
        self._tell()
        self._changed = False
        self._resting = asyncio.get_running_loop().call_later(PAUSE, self._rested)

    def end(self) -> None:
        if self._resting is not None:
            self._resting.cancel()

    def _rested(self) -> None:
        self._resting = None
        if self._changed:
            self.changed()


class Watched:
    """One URI of one principal that somebody is subscribed to."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.subscribers: set[Subscriber] = set()
        self.watch: asyncio.Task[None] | None = None
        self._news = Paced(self._tell)

    def tell(self) -> None:
        """It has changed."""
        self._news.changed()

    def end(self) -> None:
        if self.watch is not None:
            self.watch.cancel()
        self._news.end()

    def _tell(self) -> None:
        for subscriber in list(self.subscribers):
            subscriber.updated(self.uri)


class Updates:
    """`watch(principal, uri)` gives what finds out about changes, or None where nothing does."""

    def __init__(self, watch: Callable[[str, str], AsyncIterator[object] | None]) -> None:
        self._watch = watch
        self._held: dict[tuple[str, str], Watched] = {}

    def __len__(self) -> int:
        """How many URIs somebody is subscribed to, counted once a principal."""
        return len(self._held)

    def subscribe(self, subscriber: Subscriber, principal: str, uri: str) -> None:
        held = self._held.get((principal, uri))
        if held is None:
            held = self._held[principal, uri] = Watched(uri)
            self._begin(held, principal)
        held.subscribers.add(subscriber)

    def unsubscribe(self, subscriber: Subscriber, principal: str, uri: str) -> None:
        """Nothing happens where there is no such subscription."""
        held = self._held.get((principal, uri))
        if held is None:
            return
        held.subscribers.discard(subscriber)
        if not held.subscribers:
            del self._held[principal, uri]
            held.end()

    def changed(self, principal: str, uri: str) -> None:
        """Tell all of the principal's subscribers of `uri`."""
        held = self._held.get((principal, uri))
        if held is not None:
            held.tell()

    def renew(self) -> None:
        """The resources on offer are others: every watch begins anew, with what there is now."""
        for (principal, _), held in self._held.items():
            if held.watch is not None:
                held.watch.cancel()
            self._begin(held, principal)

    def close(self) -> None:
        for held in self._held.values():
            held.end()
        self._held.clear()

    def _begin(self, held: Watched, principal: str) -> None:
        changes = self._watch(principal, held.uri)
        held.watch = None if changes is None else asyncio.get_running_loop().create_task(_follow(changes, held))


async def _follow(changes: AsyncIterator[object], held: Watched) -> None:
    try:
        async for _ in changes:
            held.tell()
    except Exception:  # a plugin's, or a file that has gone: the subscription stands, and hears of no more changes
        log.warning("what watches %s has failed", held.uri[:200], exc_info=True)
