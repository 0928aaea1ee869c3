"""Bring unrequested messages to the replica where the client of their session reads them.

The session's record names that replica, the listener. Without one the messages wait in Redis. What all replicas learn
by themselves, such as a changed list, its listener sends alone. When that died, the client looks again at all of it.
"""

import logging
from collections.abc import Callable

import msgspec

from toolgate.server.auth.scopes import NOTHING, has_scopes
from toolgate.server.base.bus.bus import Bus, BusUnreachableError, NoReplyError, UndeliveredError
from toolgate.server.features.replicas.sessions.session_store import SessionStore, WaitingMessage
from toolgate.server.features.replicas.sessions.shared_session import SessionEndedError, SharedSession, start_work
from toolgate.server.protocol.messages import Notification, Outbound, encode
from toolgate.server.protocol.session_record import decode_record
from toolgate.transports.http.sessions.event_stream import MERGEABLE

KIND = "session-message"

log = logging.getLogger("toolgate.http")


class _Delivery(msgspec.Struct, array_like=True, frozen=True):
    """A message for a session's reader; without one: there are some in Redis."""

    session: str
    message: WaitingMessage | None = None


_decode = msgspec.msgpack.Decoder(_Delivery).decode


class UnrequestedMessages:
    """The unrequested messages of one transport's sessions. `find(key)` returns the open session with this digest."""

    def __init__(self, bus: Bus, store: SessionStore, find: Callable[[str], SharedSession | None]) -> None:
        self._bus = bus
        self._store = store
        self._find = find
        bus.mail.receive(KIND, self._receive)

    def deliver(self, session: SharedSession) -> None:
        """Deliver what the session has not sent, in order."""
        if not session.is_delivering:
            session.is_delivering = True
            start_work(session, self._deliver_all(session))

    async def begin(self, session: SharedSession) -> None:
        """Let all replicas send the session's messages here, where it gets a reader. Raises BusUnreachableError."""
        before, session.listener = session.listener, session.replica
        try:
            await session.write()
        except SessionEndedError:
            return
        await self._take_waiting(session)
        if before not in ("", session.replica):
            start_work(session, self._notify_if_dead(session, before))

    async def _notify_if_dead(self, session: SharedSession, listener: str) -> None:
        """Have the client look again, unless the replica where it was read before lives."""
        try:
            await self._bus.mail.send(listener, KIND, msgspec.msgpack.encode(_Delivery(session.key)))
        except UndeliveredError:
            session.notify_missed()
        except (NoReplyError, BusUnreachableError) as error:
            log.info("it is not known whether a session missed messages: %s", error)

    async def end(self, session: SharedSession) -> None:
        """Let messages wait in Redis: the reader has gone."""
        if session.listener == session.replica and not session.has_listener:
            session.listener = ""
            try:
                await session.write()
                await self.leave(session)
            except (SessionEndedError, BusUnreachableError) as error:
                log.info("a session has no reader any more: %s", error)

    async def leave(self, session: SharedSession) -> None:
        """Leave the messages that have not been sent to other replicas."""
        for stream in list(session.streams.values()):
            if session.is_get_stream(stream) and stream.reader is None:
                for data in stream.messages_after(stream.sent):
                    await self._wait(session, WaitingMessage(data, tuple(sorted(stream.wanted))))
                stream.sent = stream.last

    async def _deliver_all(self, session: SharedSession) -> None:
        try:
            while session.unsent:
                message = session.unsent.popleft()
                try:
                    await self._deliver(session, message)
                except BusUnreachableError:
                    session.send_here(message)  # for a reader that comes here
        finally:
            session.is_delivering = False

    async def _deliver(self, session: SharedSession, message: Outbound) -> None:
        listener = await self._find_listener(session)
        if listener == session.replica:
            session.send_here(message)
            return
        if listener and isinstance(message, Notification) and message.method in MERGEABLE:
            if await self._bus.replica.is_alive(listener):
                return  # its own session sends it
            listener = ""
        waiting = WaitingMessage(encode(message), tuple(sorted(session.session.scopes or NOTHING)))
        if not (listener and await self._send(listener, _Delivery(session.key, waiting))):
            await self._wait(session, waiting)

    async def _wait(self, session: SharedSession, message: WaitingMessage) -> None:
        """Leave a message in Redis, and say so to a listener that came meanwhile."""
        await self._store.leave_message(session.key, message)
        listener = await self._find_listener(session)
        if listener == session.replica:
            await self._take_waiting(session)
        elif listener:
            await self._send(listener, _Delivery(session.key))

    async def _find_listener(self, session: SharedSession) -> str:
        if session.has_listener:
            return session.replica
        [data] = await self._store.read_many([session.key])
        record = None if data is None else decode_record(data)
        listener = "" if record is None else record.listener
        return "" if listener == session.replica else listener

    async def _send(self, listener: str, delivery: _Delivery) -> bool:
        """Return whether another replica has the message."""
        try:
            return bool(await self._bus.mail.send(listener, KIND, msgspec.msgpack.encode(delivery)))
        except (UndeliveredError, NoReplyError):
            return False

    async def _receive(self, data: bytes) -> bytes:
        """Take a message for a reader here. Return nothing if there is none."""
        delivery = _decode(data)
        session = self._find(delivery.session)
        if session is None or session.listener != session.replica:
            return b""
        if delivery.message is None:
            await self._take_waiting(session)
        else:
            _send_here(session, delivery.message)
        return b"taken"

    async def _take_waiting(self, session: SharedSession) -> None:
        for message in await self._store.take_messages(session.key):
            _send_here(session, message)


def _send_here(session: SharedSession, message: WaitingMessage) -> None:
    """Send a message of another replica, unless the client's newest token may not read it."""
    if has_scopes(session.session.scopes, frozenset(message.wanted)):
        session.send_here(msgspec.Raw(message.data))
