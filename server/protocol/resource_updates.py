"""Watch subscribed resources and notify their subscribers. Knows nothing of how notifications are sent.

A watch (Resource.watch) runs once per principal and URI, as long as there are subscribers. The first change is sent at
once, later ones at most every `PAUSE`: more than a client can read would only fill queues.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Protocol, TypeVar

from toolgate.server.base.principals.principal import LOCAL_NAME
from toolgate.tools.api.text.uris import canonicalise

log = logging.getLogger("toolgate.updates")

PAUSE = 0.25  # seconds between two notifications of one URI
MAX_SUBSCRIPTIONS = 1_000  # of one subscriber; each may cost a watch
MAX_URIS = 128 * 1024  # characters of one subscriber's URIs: matching hostile ones takes 25 ms
MAX_WATCHES = 2_000  # running at once: one of a file takes several of the system's
MAX_OWNED = 500  # of one principal, if there are others
AGAIN = (1.0, 2.0, 5.0, 10.0)  # seconds before an interrupted watch is opened again
TURN = 32 * 1024  # characters of URIs matched before other tasks run: 6 ms

T = TypeVar("T")


class Subscriber(Protocol):
    """A session, or an open subscription."""

    def notify_updated(self, uri: str) -> None: ...


class NotificationThrottle:
    """Call `tell` for the first change at once, then at most every PAUSE."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._resting: asyncio.TimerHandle | None = None  # runs during the pause after a notification
        self._changed = False  # during the pause

    def notify(self) -> None:
        if self._resting is not None:
            self._changed = True
            return
        self._tell()
        self._changed = False
        self._resting = asyncio.get_running_loop().call_later(PAUSE, self._end_pause)

    @property
    def is_resting(self) -> bool:
        """Return whether a notification went out a moment ago."""
        return self._resting is not None

    def end(self) -> None:
        if self._resting is not None:
            self._resting.cancel()

    def _end_pause(self) -> None:
        self._resting = None
        if self._changed:
            self.notify()


class WatchedResource:
    """One resource of one principal with at least one subscriber."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.subscribers: set[tuple[Subscriber, str]] = set()  # each with its spelling of the URI
        self.watch: asyncio.Task[None] | None = None
        self._news = NotificationThrottle(self._notify_subscribers)

    def notify(self) -> None:
        """Report a change."""
        self._news.notify()

    def end(self) -> None:
        if self.watch is not None:
            self.watch.cancel()
        self._news.end()

    def _notify_subscribers(self) -> None:
        for subscriber, uri in list(self.subscribers):
            subscriber.notify_updated(uri)


async def yield_in_turns(items: Iterable[T], size: Callable[[T], int]) -> AsyncIterator[T]:
    """Yield each item, and let other tasks run between them; `size` returns the characters of an item's URIs."""
    since = 0
    for item in items:
        since += size(item)
        if since > TURN:
            since = 0
            await asyncio.sleep(0)
        yield item


class ResourceUpdates:
    """The subscriptions of one server. `watch(principal, uri)` returns a source of changes, or None if there is
    none. After an `interruption`, an exception of the source, it is opened again."""

    def __init__(
        self, watch: Callable[[str, str], AsyncIterator[object] | None], interruption: type[Exception]
    ) -> None:
        self._watch = watch
        self._interruption = interruption
        self._watched: dict[tuple[str, str], WatchedResource] = {}
        self._watches: Counter[str] = Counter()  # by principal
        self._renewing: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Return how many URIs are subscribed to, counted once per principal."""
        return len(self._watched)

    def subscribe(self, subscriber: Subscriber, principal: str, uri: str) -> bool:
        """Subscribe, and return whether there was room for a watch."""
        key = _identify(principal, uri)
        resource = self._watched.get(key)
        if resource is None:
            changes = self._watch(principal, uri)
            if changes is not None and not self._has_room(principal):
                return False
            resource = self._watched[key] = WatchedResource(uri)
            self._begin(resource, principal, changes)
        resource.subscribers.add((subscriber, uri))
        return True

    def unsubscribe(self, subscriber: Subscriber, principal: str, uri: str) -> None:
        """Unsubscribe from this spelling of the URI; without a subscription nothing happens."""
        key = _identify(principal, uri)
        resource = self._watched.get(key)
        if resource is None:
            return
        resource.subscribers.discard((subscriber, uri))
        if not resource.subscribers:
            del self._watched[key]
            self._stop(resource, principal)
            resource.end()

    def notify(self, principal: str, uri: str) -> None:
        """Notify the principal's subscribers of `uri`, each by its own spelling."""
        resource = self._watched.get(_identify(principal, uri))
        if resource is not None:
            resource.notify()

    def notify_all(self) -> None:
        """Notify all subscribers: changes may have been lost."""
        for resource in list(self._watched.values()):
            resource.notify()

    def renew(self) -> None:
        """Start every watch again after the registry has changed."""
        if self._renewing is not None:
            self._renewing.cancel()
        self._renewing = asyncio.get_running_loop().create_task(self._renew())

    def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        for resource in self._watched.values():
            resource.end()
        self._watched.clear()
        self._watches.clear()

    async def _renew(self) -> None:
        async for key in yield_in_turns(list(self._watched), lambda key: len(key[1])):
            resource, principal = self._watched.get(key), key[0]
            if resource is not None:
                self._stop(resource, principal)
                self._begin(resource, principal, self._watch(principal, resource.uri))

    def _has_room(self, principal: str) -> bool:
        share = MAX_WATCHES if principal == LOCAL_NAME else MAX_OWNED
        return self._watches[principal] < share and self._watches.total() < MAX_WATCHES

    def _begin(self, resource: WatchedResource, principal: str, changes: AsyncIterator[object] | None) -> None:
        if changes is not None:
            resource.watch = asyncio.get_running_loop().create_task(self._follow(resource, principal, changes))
            self._watches[principal] += 1

    def _stop(self, resource: WatchedResource, principal: str) -> None:
        if resource.watch is None:
            return
        resource.watch.cancel()
        resource.watch = None
        self._watches[principal] -= 1
        if not self._watches[principal]:
            del self._watches[principal]

    async def _follow(self, resource: WatchedResource, principal: str, changes: AsyncIterator[object] | None) -> None:
        pauses = iter(AGAIN)
        while changes is not None:
            try:
                async for _ in changes:
                    resource.notify()
                    pauses = iter(AGAIN)
                return
            except self._interruption:
                await asyncio.sleep(next(pauses, AGAIN[-1]))
                changes = self._watch(principal, resource.uri)
                resource.notify()  # of changes meanwhile
            except Exception:  # a plugin's, or the file is gone: the subscription stays, without further changes
                log.warning("the watch of %s has failed", resource.uri[:200], exc_info=True)
                return


def _identify(principal: str, uri: str) -> tuple[str, str]:
    """Return the key of a resource of a principal, the same for each spelling of its URI."""
    return principal, canonicalise(uri) or uri
