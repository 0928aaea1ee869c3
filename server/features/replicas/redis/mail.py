"""Send a message to one replica, and wait for the reply of its handler.

A message is published once and never repeated. So it is handled once or not at all; without a reply the sender does not
know which. A replica whose lease may have ended renews it before it handles a message. Large data goes through a key
beside the message, since Redis disconnects a reader for which 32 MB wait.
"""

import asyncio
import contextlib
import logging
import math

import msgspec

from toolgate.server.base.bus.bus import (
    MAX_DATA,
    BusUnreachableError,
    MailHandler,
    NoReplyError,
    UndeliveredError,
    check_data,
    check_name,
)
from toolgate.server.base.bus.mail_handlers import MailHandlers
from toolgate.server.features.replicas.redis.commands import RedisCommands
from toolgate.server.features.replicas.redis.replica import RedisReplica, mail_channel
from toolgate.server.features.replicas.redis.subscriptions import RedisSubscriptions

MAX_SENT = 5_000  # messages without a reply
MAX_HANDLED = 1_000  # messages that are handled at once; `LARGE` bounds their bytes
MAX_LARGE = 4  # messages with large data that are handled at once: of the largest, 68 MB
LARGE = 2**18  # bytes: a hundred such messages may wait for a reader
LIVENESS_CHECK = 1.0  # seconds of waiting after which the addressee may have died

log = logging.getLogger("toolgate.bus")


class _Request(msgspec.Struct, array_like=True, tag="request"):
    number: int
    sender: str
    kind: str
    seconds: float
    data: bytes | None  # None: it is in a key


class _Reply(msgspec.Struct, array_like=True, tag="reply"):
    number: int
    data: bytes | None = b""  # None: it is in a key
    failure: str = ""  # why there is no reply; completes "no reply from …: "


_decoder = msgspec.msgpack.Decoder(_Request | _Reply)


class RedisMail:
    """The mail of this replica, which arrives at its own channel."""

    def __init__(
        self, commands: RedisCommands, subscriptions: RedisSubscriptions, replica: RedisReplica, prefix: str
    ) -> None:
        self._commands = commands
        self._subscriptions = subscriptions
        self._replica = replica
        self._prefix = prefix
        self._handlers = MailHandlers()
        self._sent: dict[int, asyncio.Future[_Reply]] = {}
        self._last = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._large = asyncio.Semaphore(MAX_LARGE)
        self._moving = asyncio.Semaphore(2)  # others' commands wait behind large data
        self._channel = self._name_channel(replica.name)
        subscriptions.add(self._channel.encode(), self._receive, self._do_nothing)

    async def confirm(self) -> None:
        """Wait until mail arrives. Raises BusUnreachableError."""
        await self._subscriptions.confirm(self._channel.encode())

    def receive(self, kind: str, handler: MailHandler) -> None:
        self._handlers.add(kind, handler)

    async def send(self, replica: str, kind: str, data: bytes, seconds: float = 5.0) -> bytes:
        check_name(kind)
        check_data(data)
        if replica == self._replica.name:
            return await self._handlers.answer(kind, data, seconds)
        if len(self._sent) >= MAX_SENT:
            raise UndeliveredError(f"{MAX_SENT:,} messages to other replicas have no reply yet")
        self._last += 1
        number, reply = self._last, asyncio.get_running_loop().create_future()
        self._sent[number] = reply
        try:
            async with asyncio.timeout(seconds):
                own = self._replica.name
                request = _Request(number, own, kind, seconds, await self._store(own, number, "request", data, seconds))
                await self._publish(replica, request)
                replied = await self._wait_reply(replica, reply)
                return await self._load(own, number, "reply", replied.data)
        except TimeoutError:
            raise NoReplyError(f"no reply from replica {replica} within {seconds:g} s") from None
        finally:
            del self._sent[number]

    async def close(self) -> None:
        """Cancel what is handled, and fail what has no reply."""
        self._subscriptions.remove(self._channel.encode())
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for reply in self._sent.values():
            if not reply.done():
                reply.set_result(_Reply(0, failure="this replica ends"))

    async def _publish(self, replica: str, request: _Request) -> None:
        """Raises UndeliveredError, BusUnreachableError."""
        count = await self._replica.publish_to(replica, self._name_channel(replica), msgspec.msgpack.encode(request))
        if not count:
            raise UndeliveredError(f"no replica {replica} reads its mail")

    async def _wait_reply(self, replica: str, reply: "asyncio.Future[_Reply]") -> _Reply:
        """Raises NoReplyError."""
        while not reply.done():
            await asyncio.wait([reply], timeout=LIVENESS_CHECK)
            if not reply.done():
                with contextlib.suppress(BusUnreachableError):  # the time limit ends the wait
                    if not await self._replica.is_alive(replica) and not reply.done():
                        raise NoReplyError(f"replica {replica} has ended without a reply")
        received = reply.result()
        if received.failure:
            raise NoReplyError(f"no reply from replica {replica}: {received.failure}")
        return received

    async def _store(self, sender: str, number: int, part: str, data: bytes, seconds: float) -> bytes | None:
        """Return small data, or store it for its reader and return None. Raises BusUnreachableError."""
        if len(data) <= LARGE:
            return data
        name, milliseconds = self._name_data(sender, number, part), math.ceil(seconds * 1_000)
        async with self._moving:
            await self._commands.run("SET", name, data, "PX", milliseconds)
        return None

    async def _load(self, sender: str, number: int, part: str, data: bytes | None) -> bytes:
        """Return data as its sender stored it. Raises NoReplyError, BusUnreachableError."""
        if data is None:
            async with self._moving:
                data = await self._commands.run("GETDEL", self._name_data(sender, number, part), expected=MAX_DATA)
        if data is None:
            raise NoReplyError("its data has ended")
        return data

    def _receive(self, data: bytes) -> None:
        try:
            message: _Request | _Reply = _decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            log.warning("mail of another version was dropped: %d bytes", len(data))
            return
        match message:
            case _Request():
                self._start(message)
            case _Reply(number=number):
                reply = self._sent.get(number)
                if reply is not None and not reply.done():
                    reply.set_result(message)

    def _start(self, request: _Request) -> None:
        if len(self._tasks) >= MAX_HANDLED:
            refusal = msgspec.msgpack.encode(_Reply(request.number, failure="it has too much mail"))
            self._commands.run("PUBLISH", self._name_channel(request.sender), refusal)  # lost if Redis is away
            return
        task = asyncio.get_running_loop().create_task(self._handle(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, request: _Request) -> None:
        try:
            if not self._replica.holds_lease() and not await self._replica.renew():
                return  # others may do the work of this replica already
            reply = await self._answer(request)
            await self._commands.run("PUBLISH", self._name_channel(request.sender), msgspec.msgpack.encode(reply))
        except BusUnreachableError as error:
            log.warning("a reply was lost: %s", error)

    async def _answer(self, request: _Request) -> _Reply:
        """Raises BusUnreachableError."""
        number, sender = request.number, request.sender
        try:
            async with self._large if request.data is None else contextlib.nullcontext():
                data = await self._load(sender, number, "request", request.data)
                replied = await self._handlers.answer(request.kind, data, request.seconds)
        except NoReplyError as error:
            return _Reply(number, failure=str(error))
        return _Reply(number, await self._store(sender, number, "reply", replied, request.seconds))

    def _name_data(self, sender: str, number: int, part: str) -> str:
        return f"{self._prefix}mail-data:{sender}:{number}:{part}"

    def _name_channel(self, replica: str) -> str:
        return mail_channel(self._prefix, replica)

    def _do_nothing(self) -> None:
        """What was lost beside a reconnect has no reply: its sender knows."""
