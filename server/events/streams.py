"""Send events on requests that stay open (`events/stream`), with heartbeats between them.

A stream reads its events from the log, a page at a time, and only while its client keeps up. So it holds none of them
in memory, and a slow reader costs one page.
"""

import asyncio
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from toolgate.server.events.cursors import CursorCoder
from toolgate.server.events.errors import EventError
from toolgate.server.events.format import format_event
from toolgate.server.events.log import EventLog
from toolgate.server.protocol.errors import InternalError
from toolgate.server.protocol.message_ids import Id
from toolgate.server.protocol.messages import Notification
from toolgate.server.protocol.request_meta import SUBSCRIPTION
from toolgate.server.protocol.session import Channel
from toolgate.server.state.event_rows import EventFilter, EventPage, Position
from toolgate.server.state.store import StateError

if TYPE_CHECKING:
    from toolgate.server.principal import GrantKey

HEARTBEAT = 15.0  # seconds: half of what a client may take for the longest silence
MAX_STREAMS = 1_000  # of all principals: each costs a task
MAX_OWN_STREAMS = 64  # of one
PAGE = 100  # events that are read together
FULL_PAUSE = 0.05  # seconds until a client that did not keep up is looked at again; twice as long each time
MAX_FULL_PAUSE = 2.0


class EventStreams:
    """The open streams of one server."""

    def __init__(self, log: EventLog, cursors: CursorCoder, heartbeat: float = HEARTBEAT) -> None:
        self.log = log
        self.cursors = cursors
        self.is_ending = False  # a stream that begins now ends at once
        self._heartbeat = heartbeat
        self._open: dict[OpenEventStream, None] = {}
        self._timer: asyncio.TimerHandle | None = None
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
        for stream in self._open:
            stream.news.set()

    def _wake(self, principal: str, type: str) -> None:
        for stream in self._open:
            if stream.wanted.type == type and stream.wanted.principal == principal:
                stream.news.set()

    def _beat(self) -> None:
        """Send heartbeats, and look for events that another process on the same state has recorded."""
        self._timer = None
        for stream in self._open:
            stream.beat()
        if self._open:
            self._timer = asyncio.get_running_loop().call_later(self._heartbeat, self._beat)


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
        page = await self._read(after, PAGE, not_before)
        is_ours = after is not None and after.log == page.position.log
        self._send("active", cursor=self._cursor(after if is_ours else page.position), truncated=page.is_truncated)
        self._is_active = True
        self._send_page(page)
        while not self._is_ended:
            if page.has_more:
                await self._wait_for_room()
            else:
                await self.news.wait()
            self.news.clear()
            if not self._is_ended:
                page = await self._continue(page, not_before)
        return {"_meta": {SUBSCRIPTION: self.id}}

    async def _continue(self, page: EventPage, not_before: float) -> EventPage:
        """Send the next page, and return it. When the state can't be read, the next heartbeat tries again."""
        try:
            page = await self._read(self._position, PAGE, not_before)
        except StateError as error:
            self._send("error", error={"code": InternalError.code, "message": str(error)})
            return replace(page, events=(), has_more=False)
        if page.is_truncated:
            self._send("active", cursor=self._cursor(page.position), truncated=True)
        self._send_page(page)
        return page

    def end(self) -> None:
        """End the stream in order."""
        self._is_ended = True
        self.news.set()

    def terminate(self, error: EventError) -> None:
        """End the stream, and say why."""
        if not self._is_ended:
            self._send("terminated", error=error.to_wire(is_declared=self.is_declared))
            self.end()

    def beat(self) -> None:
        """Show that the stream lives, and have it look for events."""
        if self._is_active and not self._is_ended:
            if not self.channel.is_full:
                self._send("heartbeat", cursor=self._cursor(self._position))
            self.news.set()

    async def _read(self, after: Position | None, most: int, not_before: float) -> EventPage:
        page = await self._home.log.read_page(self.wanted, after, most, not_before)
        self._position = page.position
        return page

    async def _wait_for_room(self) -> None:
        pause = FULL_PAUSE
        while self.channel.is_full and not self._is_ended:
            await asyncio.sleep(pause)  # a channel has no event for this, and a reader that keeps up never gets here
            pause = min(2 * pause, MAX_FULL_PAUSE)

    def _send_page(self, page: EventPage) -> None:
        for found in page.events:
            self._send("event", **format_event(found, self._cursor(Position(page.position.log, found.number))))

    def _cursor(self, position: Position | None) -> str | None:
        return None if position is None else self._home.cursors.format_cursor(self.wanted.principal, position)

    def _send(self, kind: str, **params: Any) -> None:
        self.channel.send(Notification(f"notifications/events/{kind}", {**params, "_meta": {SUBSCRIPTION: self.id}}))
