"""Bring unrequested messages to the replica where the client of their session reads them.

The session's record names that replica, the listener. Without one the messages wait in Redis. What all replicas learn
by themselves, such as a changed list, its listener sends alone. When that died, the client looks again at all of it.
"""

import logging
from collections.abc import Callable

import msgspec

from toolgate.server.base.bus.bus import Bus, BusUnreachableError, NoReplyError, UndeliveredError
from toolgate.server.base.principals.scopes import NOTHING, has_scopes
from toolgate.server.features.replicas.sessions.record import decode_record
from toolgate.server.features.replicas.sessions.redis_backend import RedisBackend, SessionEndedError, start_work
from toolgate.server.features.replicas.sessions.redis_records import RedisSessionRecords, WaitingMessage
from toolgate.server.protocol.messages import Notification, Outbound, encode
from toolgate.transports.http.sessions.event_stream import MERGEABLE

KIND = "session-message"

log = logging.getLogger("toolgate.http")


class _SessionMail(msgspec.Struct, array_like=True, frozen=True):
    """A message for a session's reader; without one: there are some in Redis."""

    session: str
    message: WaitingMessage | None = None


_decode = msgspec.msgpack.Decoder(_SessionMail).decode


class UnrequestedMessages:
    """The unrequested messages of one transport's sessions. `find(key)` returns the open session with this digest."""

    def __init__(self, bus: Bus, records: RedisSessionRecords, find: Callable[[str], RedisBackend | None]) -> None:
        self._bus = bus
        self._records = records
        self._find = find
        bus.mail.receive(KIND, self._receive)

    def deliver(self, shared: RedisBackend) -> None:
        """Deliver what the session has not sent, in order."""
        if not shared.is_delivering:
            shared.is_delivering = True
            start_work(shared.session, self._deliver_all(shared))

    async def begin(self, shared: RedisBackend) -> None:
        """Let all replicas send the session's messages here, where it gets a reader. Raises BusUnreachableError."""
        before, shared.listener = shared.listener, shared.replica
        try:
            await shared.merge()
        except SessionEndedError:
            return
        await self._take_waiting(shared)
        if before not in ("", shared.replica):
            start_work(shared.session, self._notify_if_dead(shared, before))

    async def _notify_if_dead(self, shared: RedisBackend, listener: str) -> None:
        """Have the client look again, unless the replica where it was read before lives."""
        try:
            await self._bus.mail.send(listener, KIND, msgspec.msgpack.encode(_SessionMail(shared.key)))
        except UndeliveredError:
            shared.notify_missed()
        except (NoReplyError, BusUnreachableError) as error:
            log.info("it is not known whether a session missed messages: %s", error)

    async def end(self, shared: RedisBackend) -> None:
        """Let messages wait in Redis: the reader has gone."""
        if shared.listener == shared.replica and not shared.session.has_listener:
            shared.listener = ""
            try:
                await shared.merge()
                await self.leave(shared)
            except (SessionEndedError, BusUnreachableError) as error:
                log.info("a session has no reader any more: %s", error)

    async def leave(self, shared: RedisBackend) -> None:
        """Leave the messages that have not been sent to other replicas."""
        for stream in list(shared.session.streams.values()):
            if shared.session.is_get_stream(stream) and stream.reader is None:
                for data in stream.messages_after(stream.sent):
                    await self._wait(shared, WaitingMessage(data, tuple(sorted(stream.wanted))))
                stream.sent = stream.last

    async def _deliver_all(self, shared: RedisBackend) -> None:
        try:
            while shared.unsent:
                message = shared.unsent.popleft()
                try:
                    await self._deliver(shared, message)
                except BusUnreachableError:
                    shared.session.send_here(message)  # for a reader that comes here
        finally:
            shared.is_delivering = False

    async def _deliver(self, shared: RedisBackend, message: Outbound) -> None:
        listener = await self._find_listener(shared)
        if listener == shared.replica:
            shared.session.send_here(message)
            return
        if listener and isinstance(message, Notification) and message.method in MERGEABLE:
            if await self._bus.replica.is_alive(listener):
                return  # its own session sends it
            listener = ""
        waiting = WaitingMessage(encode(message), tuple(sorted(shared.session.session.scopes or NOTHING)))
        if not (listener and await self._send(listener, _SessionMail(shared.key, waiting))):
            await self._wait(shared, waiting)

    async def _wait(self, shared: RedisBackend, message: WaitingMessage) -> None:
        """Leave a message in Redis, and say so to a listener that came meanwhile."""
        await self._records.leave_message(shared.key, message)
        listener = await self._find_listener(shared)
        if listener == shared.replica:
            await self._take_waiting(shared)
        elif listener:
            await self._send(listener, _SessionMail(shared.key))

    async def _find_listener(self, shared: RedisBackend) -> str:
        if shared.session.has_listener:
            return shared.replica
        [data] = await self._records.read_many([shared.key])
        record = None if data is None else decode_record(data)
        listener = "" if record is None else record.listener
        return "" if listener == shared.replica else listener

    async def _send(self, listener: str, delivery: _SessionMail) -> bool:
        """Return whether another replica has the message."""
        try:
            return bool(await self._bus.mail.send(listener, KIND, msgspec.msgpack.encode(delivery)))
        except (UndeliveredError, NoReplyError):
            return False

    async def _receive(self, data: bytes) -> bytes:
        """Take a message for a reader here. Return nothing if there is none."""
        delivery = _decode(data)
        shared = self._find(delivery.session)
        if shared is None or shared.listener != shared.replica:
            return b""
        if delivery.message is None:
            await self._take_waiting(shared)
        else:
            _send_here(shared, delivery.message)
        return b"taken"

    async def _take_waiting(self, shared: RedisBackend) -> None:
        for message in await self._records.take_messages(shared.key):
            _send_here(shared, message)


def _send_here(shared: RedisBackend, message: WaitingMessage) -> None:
    """Send a message of another replica, unless the client's newest token may not read it."""
    if has_scopes(shared.session.session.scopes, frozenset(message.wanted)):
        shared.session.send_here(msgspec.Raw(message.data))
