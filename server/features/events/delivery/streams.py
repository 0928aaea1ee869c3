"""Send events on requests that stay open (`events/stream`), with heartbeats between them.

A stream reads its events from the log, a page at a time, and only while its client keeps up. So it holds none of them
in memory, and a slow reader costs one page. Streams at the same place share the read of a page. At each heartbeat one
read for all streams finds those with something to read.
"""

import asyncio
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from toolgate.server.base.errors import StateError
from toolgate.server.features.events.delivery.page_reads import PageReads, StreamPage
from toolgate.server.features.events.log.cursors import CursorCoder
from toolgate.server.features.events.log.errors import EventError
from toolgate.server.features.events.log.log import EventLog
from toolgate.server.features.events.log.looks import EventReaderPlace
from toolgate.server.features.events.log.rows import EventFilter, Position
from toolgate.server.protocol.errors import InternalError
from toolgate.server.protocol.message_ids import Id
from toolgate.server.protocol.messages import Notification
from toolgate.server.protocol.request_meta import SUBSCRIPTION
from toolgate.server.protocol.session import Channel

if TYPE_CHECKING:
    from toolgate.server.base.principals.principal import GrantKey

HEARTBEAT = 15.0  # seconds: half of what a client may take for the longest silence
MAX_STREAMS = 1_000  # of all principals: each costs a task
MAX_OWN_STREAMS = 64  # of one
FULL_PAUSE = 0.05  # seconds until a client that did not keep up is looked at again; twice as long each time
MAX_FULL_PAUSE = 2.0


class EventStreams:
    """The open streams of one server."""

    def __init__(self, log: EventLog, cursors: CursorCoder, heartbeat: float = HEARTBEAT) -> None:
        self.log = log
        self.cursors = cursors
        self.is_ending = False  # a stream that begins now ends at once
        self.pages = PageReads(log, cursors)
        self._heartbeat = heartbeat
        self._open: dict[OpenEventStream, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        log.on_news.append(self._wake)

    def __len__(self) -> int:
        return len(self._open)

    def open(
        self,
        id: Id,
        channel: Channel,
        wanted: EventFilter,
        right: "GrantKey | None",
        *,
        is_shared: bool,
        is_declared: bool,
    ) -> "OpenEventStream":
        """Return a stream for a request. Raises EventError if there are too many; `is_shared`: there are others."""
        each = Counter(stream.wanted.principal for stream in self._open)
        most = MAX_OWN_STREAMS if is_shared else MAX_STREAMS
        if each[wanted.principal] >= most or len(self._open) >= MAX_STREAMS:
            raise EventError("ResourceExhausted", f"more than {most} open streams", limit="streams", max=most)
        stream = OpenEventStream(self, id, channel, wanted, right, is_declared=is_declared)
        self._open[stream] = None
        self.log.note_change(wanted.principal)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._heartbeat, self._beat)
        if self.is_ending:
            stream.end()
        return stream

    def close(self, stream: "OpenEventStream") -> None:
        """Forget a stream whose request has ended."""
        self._open.pop(stream, None)
        self.log.note_change(stream.wanted.principal)

    def end_all(self) -> list["OpenEventStream"]:
        """End all streams, and those to come: each answers its request with a result."""
        self.is_ending = True
        ended = list(self._open)
        for stream in ended:
            stream.end()
        return ended

    def rights(self) -> Collection["GrantKey"]:
        """Return what the access of each stream depends on."""
        return [stream.right for stream in self._open if stream.right is not None]

    def terminate_rights(self, rights: Collection["GrantKey"]) -> None:
        """End the streams of revoked grants."""
        self._terminate(
            [stream for stream in self._open if stream.right in rights],
            EventError("Forbidden", "the access that allowed this stream was revoked"),
        )

    def terminate_principal(self, principal: str) -> None:
        """End the streams of a principal who was removed."""
        self._terminate(
            [stream for stream in self._open if stream.wanted.principal == principal],
            EventError("Forbidden", "the access that allowed this stream was revoked"),
        )

    def count_each(self, principal: str) -> "Counter[EventFilter]":
        """Return what a principal's streams wait for, each with their number."""
        return Counter(stream.wanted for stream in self._open if stream.wanted.principal == principal)

    def terminate_filter(self, wanted: EventFilter, error: EventError) -> int:
        """End the streams of these events, and return their number."""
        found = [stream for stream in self._open if stream.wanted == wanted]
        self._terminate(found, error)
        return len(found)

    def terminate_type(self, type: str, error: EventError) -> None:
        """End the streams of a type that is served no longer."""
        self._terminate([stream for stream in self._open if stream.wanted.type == type], error)

    def _terminate(self, streams: Collection["OpenEventStream"], error: EventError) -> None:
        for stream in streams:
            stream.terminate(error)

    def wake_all(self) -> None:
        """Have all streams look for events."""
        self.pages.forget_all()
        for stream in self._open:
            stream.news.set()

    def _wake(self, principal: str, type: str) -> None:
        self.pages.note_news(principal, type)
        for stream in self._open:
            if stream.wanted.type == type and stream.wanted.principal == principal:
                stream.news.set()

    def _beat(self) -> None:
        """Send heartbeats, and look for events that another process on the same state has recorded."""
        self._timer = None
        for stream in self._open:
            stream.beat()
        if self._open:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._heartbeat, self._beat)
            if self._looking is None or self._looking.done():
                self._looking = loop.create_task(self._look())

    async def _look(self) -> None:
        """Wake the streams that have something to read. When the state can't be read, they tell their clients."""
        places = {stream: place for stream in self._open if (place := stream.place) is not None}
        try:
            behind = await self.pages.find_behind(set(places.values()))
        except StateError as error:
            for stream in places:
                stream.report(error)
            return
        self.pages.forget_all()
        for stream, place in places.items():
            if place in behind:
                stream.news.set()


class OpenEventStream:
    """One open `events/stream`."""

    __slots__ = (
        "_home",
        "_is_active",
        "_is_ended",
        "_position",
        "channel",
        "id",
        "is_declared",
        "news",
        "right",
        "wanted",
    )

    def __init__(
        self,
        home: EventStreams,
        id: Id,
        channel: Channel,
        wanted: EventFilter,
        right: "GrantKey | None",
        *,
        is_declared: bool,
    ) -> None:
        self.id = id
        self.channel = channel
        self.wanted = wanted
        self.right = right
        self.is_declared = is_declared  # the client has declared the extension
        self.news = asyncio.Event()
        self._home = home
        self._position: Position | None = None
        self._is_active = False
        self._is_ended = False

    async def run(self, after: Position | None, not_before: float) -> dict[str, Any]:
        """Send what comes after a position until the stream ends, and return the request's result."""
        has_more = await self._begin(after, not_before)
        while not self._is_ended:
            if has_more:
                await self._wait_for_room()
            else:
                await self.news.wait()
            self.news.clear()
            if not self._is_ended:
                has_more = await self._continue(not_before)
        return {"_meta": {SUBSCRIPTION: self.id}}

    async def _begin(self, after: Position | None, not_before: float) -> bool:
        """Send the first page, and return whether there are more."""
        read = await self._read(after, not_before)
        position = read.page.position
        is_ours = after is not None and after.log == position.log
        self._send("active", cursor=self._cursor(after if is_ours else position), truncated=read.page.is_truncated)
        self._is_active = True
        self._send_events(read)
        return read.page.has_more

    async def _continue(self, not_before: float) -> bool:
        """Send the next page, and return whether there are more. When the state can't be read, the next heartbeat tries
        again."""
        try:
            read = await self._read(self._position, not_before)
        except StateError as error:
            self.report(error)
            return False
        if read.page.is_truncated:
            self._send("active", cursor=self._cursor(read.page.position), truncated=True)
        self._send_events(read)
        return read.page.has_more

    def report(self, error: StateError) -> None:
        """Tell the client that the state can't be read now."""
        if not self._is_ended:
            self._send("error", error={"code": InternalError.code, "message": str(error)})

    def end(self) -> None:
        """End the stream in order."""
        self._is_ended = True
        self.news.set()

    def terminate(self, error: EventError) -> None:
        """End the stream, and say why."""
        if not self._is_ended:
            self._send("terminated", error=error.to_wire(is_declared=self.is_declared))
            self.end()

    @property
    def place(self) -> EventReaderPlace | None:
        """Return what the stream has read, or None before its first page and after its end."""
        if self._position is None or not self._is_active or self._is_ended:
            return None
        return EventReaderPlace(self.wanted, self._position)

    def beat(self) -> None:
        """Show that the stream lives."""
        if self._is_active and not self._is_ended and not self.channel.is_full:
            self._send("heartbeat", cursor=self._cursor(self._position))

    async def _read(self, after: Position | None, not_before: float) -> StreamPage:
        read = await self._home.pages.read(self.wanted, after, not_before)
        self._position = read.page.position
        return read

    async def _wait_for_room(self) -> None:
        pause = FULL_PAUSE
        while self.channel.is_full and not self._is_ended:
            await asyncio.sleep(pause)  # a channel has no event for this, and a reader that keeps up never gets here
            pause = min(2 * pause, MAX_FULL_PAUSE)

    def _send_events(self, read: StreamPage) -> None:
        for event in read.events:
            self._send("event", **event)

    def _cursor(self, position: Position | None) -> str | None:
        return None if position is None else self._home.cursors.format_cursor(self.wanted.principal, position)

    def _send(self, kind: str, **params: Any) -> None:
        self.channel.send(Notification(f"notifications/events/{kind}", {**params, "_meta": {SUBSCRIPTION: self.id}}))
