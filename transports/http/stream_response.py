"""Send a stream as the response to a request, until it ends or its reader leaves."""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from toolgate.server.base.http.head import format_lines
from toolgate.server.base.principals.principal import Principal
from toolgate.transports.http.sessions.event_stream import EventStream
from toolgate.transports.http.transport import HttpBudgets
from toolgate.transports.http.wire.request import HttpRequest
from toolgate.transports.http.wire.writer import AnswerWriter

OPEN = b": open\r\n\r\n"  # sent at once: proxies and clients wait for a first byte
PING = b": ping\r\n\r\n"
PULSE = 15.0  # seconds between comments on a quiet stream
RETRY = 1_000  # milliseconds until a disconnected reader may come back
RETURN = b"retry: 250\r\n\r\n"  # before the server ends: another one may serve the reader at once
LARGE = 64 * 1024  # bytes of events that wait in the connection without being counted
HasRoom = Callable[[int, Callable[[], None]], bool]  # whether so many bytes may be sent; else it calls back later
HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store, no-transform"),  # no-transform: never compressed, which would buffer
    (b"x-accel-buffering", b"no"),
]
LINES = format_lines(HEADERS)

log = logging.getLogger("toolgate.http")


class StreamSender:
    """Sends a transport's streams within the principals' budgets; comments every `pulse` seconds. `now` is the clock by
    which tokens end, in seconds since the epoch."""

    def __init__(self, budgets: HttpBudgets, pulse: float, now: Callable[[], float] = time.time) -> None:
        self.is_draining = False
        self.streams: set[EventStream] = set()  # that are read now
        self._budgets = budgets
        self._pulse = pulse
        self._now = now
        self._timer: asyncio.TimerHandle | None = None

    async def send(
        self,
        stream: EventStream,
        cursor: int,
        principal: Principal,
        request: HttpRequest,
        writer: AnswerWriter,
        *,
        keep: bool,
        poll: float | None = None,
        until: float | None = None,
        extra: bytes = b"",
    ) -> bool:
        """Send a stream's events after number `cursor`. Return True at its end, False if the reader leaves, is
        disconnected or too slow.

        `keep`: sent events stay, for a reader that lost them. `poll`: seconds until the reader is disconnected, to come
        back, or None. `until`: when it is disconnected in any case, in seconds since 1970. `extra` are header lines.
        """
        reader = object()
        release = partial(stream.release, reader)
        stream.attach(reader)
        ends = [poll] if poll is not None else []
        ends += [until - self._now()] if until is not None else []
        timer = asyncio.get_running_loop().call_later(min(ends), release) if ends else None
        self._add(stream)
        place = self._budgets.streams.take(principal.name, 1, release)
        has_room = partial(self._budgets.answers.has_room, principal.name)
        try:
            writer.begin(200, LINES + extra)
            request.watch_client(release)
            writer.join(OPEN if poll is None else stream.format_primer(cursor, RETRY))
            whole = await _write(stream, cursor, writer, reader, has_room, keep=keep, polled=poll is not None)
        finally:
            request.watch_client(None)
            if timer is not None:
                timer.cancel()
            stream.release(reader)
            if stream.reader is None:
                self.streams.discard(stream)
            if place is not None:
                place.release()
        if self.is_draining and not whole:
            await writer.write(RETURN)
        writer.end()
        return whole

    def _add(self, stream: EventStream) -> None:
        self.streams.add(stream)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pulse, self._ping)

    def _ping(self) -> None:
        self._timer = None
        for stream in self.streams:
            stream.pinged = True
            stream.news.set()
        if self.streams:
            self._timer = asyncio.get_running_loop().call_later(self._pulse, self._ping)


async def _write(
    stream: EventStream,
    cursor: int,
    writer: AnswerWriter,
    reader: object,
    has_room: HasRoom,
    *,
    keep: bool,
    polled: bool,
) -> bool:
    while stream.reader is reader:
        stream.news.clear()
        if stream.has_gap(cursor) and not keep:
            log.info("a reader was too slow and is disconnected")
            return False  # its next events are gone, and without numbers it could not notice
        waiting = stream.size_after(cursor)
        is_full = waiting > LARGE and not has_room(waiting, stream.news.set)
        events = [] if is_full else stream.events_after(cursor)
        if events:
            cursor = stream.sent = stream.last
        elif stream.ended and not is_full:
            return True
        elif stream.leaving and polled:
            stream.leaving = False
            return False
        elif stream.pinged:
            events = [PING]
        stream.pinged = False
        if events and stream.ended and waiting <= LARGE:
            # in one write from head to end: a proxy in Go may lose what follows the first one (golang/go issue 40747)
            writer.join(b"".join(events))
        elif events:
            await writer.write(b"".join(events))
        else:
            await writer.flush()
            await stream.news.wait()
        if events and not keep:
            stream.forget(cursor)
    return False
