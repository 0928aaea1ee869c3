"""Share a principal's notices between replicas: the next result at any of them delivers each once.

They wait in one key. A topic tells all replicas when there is something, so a call without news costs no command. A
result takes all of it with one command; what it has no room for goes back.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial

import msgspec

from toolgate.server.base.bus.bus import Bus, BusUnreachableError
from toolgate.tools.api.context.notices import MAX_NOTICES, CountedNotice, Notices

LIFETIME = 7 * 86_400.0  # seconds that notices wait for a call
WAITING = "notices"  # topic
MAX_KNOWN = 10_000  # principals of whom a replica knows that nothing waits
PATIENCE = 0.25  # seconds that a result waits for Redis: after a second it would be a stream
TRIES = 20  # of writing what others change at the same time

log = logging.getLogger("toolgate")

Stored = dict[str, CountedNotice]
_decode = msgspec.msgpack.Decoder(Stored).decode


class SharedNotices:
    """The notices of all principals, beside those that are on their way from here."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._pushing: dict[str, asyncio.Task[None]] = {}  # by principal
        self._taking: set[asyncio.Task[None]] = set()
        self._known: set[str] = set()  # principals without notices, unless a message says otherwise
        self._dropped: dict[str, set[str]] = {}  # keys of notices that a running call has made needless
        bus.topics.subscribe(WAITING, self._receive, self._known.clear)

    def create_notices(self, principal: str) -> Notices:
        """Return empty notices of the principal. What is added to them is shared."""
        return Notices(partial(self._note_added, principal), partial(self._note_dropped, principal))

    async def fetch(self, principal: str, notices: Notices) -> None:
        """Bring the principal's notices here, for the result of a call."""
        dropped = self._dropped.pop(principal, ())
        pushing = self._pushing.get(principal)
        if pushing is not None:
            await asyncio.wait([pushing], timeout=PATIENCE)
        if principal in self._known or not self._bus.health().is_reachable:  # no call waits for a reconnect
            return
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known.add(principal)  # before the command: what comes meanwhile counts
        taking = asyncio.get_running_loop().create_task(self._take(principal, notices, dropped))
        self._taking.add(taking)
        taking.add_done_callback(self._taking.discard)
        await asyncio.wait([taking], timeout=PATIENCE)

    async def _take(self, principal: str, notices: Notices, dropped: Collection[str]) -> None:
        """Take what waits. What comes too late for its call is there for the next result."""
        try:
            data = await self._bus.keys.take(_key(principal))
        except BusUnreachableError as error:
            self._known.discard(principal)
            log.warning("the notices of a principal wait: %s", error)
            return
        if data is not None:
            notices.put({key: notice for key, notice in _decode(data).items() if key not in dropped})

    def give_back(self, principal: str, notices: Notices) -> None:
        """Let the next result at any replica deliver what is left."""
        if notices.by_key:
            self._begin_push(principal, notices)

    def _receive(self, data: bytes) -> None:
        self._known.discard(data.decode())

    def _note_added(self, principal: str, notices: Notices, key: str) -> None:
        dropped = self._dropped.get(principal)
        if dropped is not None:  # an earlier notice under this key was
            dropped.discard(key)
        self._begin_push(principal, notices)

    def _note_dropped(self, principal: str, key: str) -> None:
        self._dropped.setdefault(principal, set()).add(key)

    def _begin_push(self, principal: str, notices: Notices) -> None:
        if principal not in self._pushing:
            pushing = asyncio.get_running_loop().create_task(self._push(principal, notices))
            self._pushing[principal] = pushing
            pushing.add_done_callback(lambda _: self._pushing.pop(principal, None))

    async def _push(self, principal: str, notices: Notices) -> None:
        while notices.by_key:
            batch = notices.export()
            try:
                await self._change(principal, partial(_merge, batch))
                self._bus.topics.publish(WAITING, principal.encode())
            except BusUnreachableError as error:
                log.warning("other replicas do not see the notices of a principal: %s", error)
                notices.put(batch)
                return

    async def _change(self, principal: str, change: Callable[[Stored], Stored]) -> None:
        key = _key(principal)
        for _ in range(TRIES):
            old = await self._bus.keys.get(key)
            new = msgspec.msgpack.encode(change({} if old is None else _decode(old)))
            if old is None:
                is_written = await self._bus.keys.set_if_absent(key, new, LIFETIME)
            else:
                is_written = await self._bus.keys.replace(key, old, new, LIFETIME)
            if is_written:
                return
        raise BusUnreachableError("the notices of a principal change too often")


def _merge(batch: Mapping[str, CountedNotice], stored: Stored) -> Stored:
    """Return the stored notices and the batch, the newest last, as many as a principal may have."""
    for key, notice in batch.items():
        earlier = stored.pop(key, None)
        stored[key] = notice if earlier is None else notice._replace(times=notice.times + earlier.times)
    return dict(list(stored.items())[-MAX_NOTICES:])


def _key(principal: str) -> str:
    return f"notices {principal}"
