"""Send commands to Redis in batches over one connection, each with a time limit.

One batch is under way at a time. The commands of one turn of the event loop, and those that come before its end, go
in the next one. A cancelled caller leaves its reply to be read and dropped. Beside a lost connection a command waits
for the next one, within its time limit. One that was sent may have been carried out, so it fails, unless it may be
repeated.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from toolgate.server.base.bus.bus import BusUnreachableError
from toolgate.server.features.replicas.redis.connection import (
    AbstractConnection,
    ReadOnlyError,
    Redis,
    RedisServer,
    Reply,
    ResponseError,
)
from toolgate.server.features.replicas.redis.link import RedisLink

MAX_WAITING = 20_000  # commands without a reply: more than Redis carries out in a time limit, so they would fail
MAX_WAITING_SIZE = 64 * 2**20  # bytes of these: three of the largest values, and others
MAX_BATCH = 1_000  # commands of one batch
SLOWEST = 8 * 2**20  # bytes a second: large data gets so much more time, and so does what is sent after it
LATE = 0.1  # seconds: if the event loop is later than this, replies may have come meanwhile
OVERHEAD = 16  # bytes of a word, besides its data

Words = Sequence[str | bytes | int]


class _PendingCommand(msgspec.Struct, eq=False):
    """A command without a reply, which fails when it is `due`. `may_repeat`: it changes nothing."""

    words: Words
    reply: "asyncio.Future[Reply]"
    size: int
    began: float
    due: float
    may_repeat: bool
    is_sent: bool = False
    is_postponed: bool = False
    timer: asyncio.TimerHandle | None = None


class RedisCommands:
    """The connection for commands. `seconds` is the time limit of each. `latency` is the last command's seconds.

    `on_connected` is called after each connect, before waiting commands are sent.
    """

    def __init__(self, server: RedisServer, seconds: float) -> None:
        self._server = server
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[_PendingCommand] = deque()
        self._sent: deque[_PendingCommand] = deque()
        self._size = 0
        self._has_work = asyncio.Event()
        self._limit: asyncio.Timeout | None = None  # of the connection's life: a command that is late ends it
        self._is_closed = False
        self.latency = 0.0
        self.on_connected: Callable[[], None] = lambda: None
        self.link = RedisLink(server, "commands", self._serve, seconds)

    def run(self, *words: str | bytes | int, may_repeat: bool = False, expected: int = 0) -> "asyncio.Future[Reply]":
        """Send a command, and return its reply. The reply's exception is a BusUnreachableError.

        may_repeat: it changes nothing
        expected: bytes that a large reply may have, for which it gets more time
        """
        size = expected + sum(OVERHEAD + (0 if isinstance(word, int) else len(word)) for word in words)
        reply: asyncio.Future[Reply] = self._loop.create_future()
        now = self._loop.time()
        if (failure := self._find_failure(size)) is not None:
            _fail(reply, failure)
            return reply
        self._size += size
        due = now + self._seconds + self._size / SLOWEST
        command = _PendingCommand(words, reply, size, now, due, may_repeat)
        command.timer = self._loop.call_at(due, self._expire, command)
        self._unsent.append(command)
        self._has_work.set()
        return reply

    async def run_all(self, *commands: Words, may_repeat: bool = False) -> list[Reply]:
        """Send commands in one round trip, and return their replies. Raises BusUnreachableError."""
        replies = [self.run(*words, may_repeat=may_repeat) for words in commands]
        return [await reply for reply in replies]

    async def close(self) -> None:
        """Disconnect. Commands without a reply fail."""
        self._is_closed = True
        await self.link.close()
        while self._unsent:
            self._fail(self._unsent.popleft(), self._closed_error())

    def _find_failure(self, size: int) -> BusUnreachableError | None:
        """Return why a new command can't be sent, or None."""
        if self._is_closed:
            return self._closed_error()
        if self.link.is_away_for(self._seconds):
            return self.link.failure
        count = len(self._unsent) + len(self._sent)
        if count >= MAX_WAITING or (count and self._size + size > MAX_WAITING_SIZE):
            return BusUnreachableError(f"Redis at {self._server.name} is too slow: {count:,} commands wait for it")
        return None

    def _closed_error(self) -> BusUnreachableError:
        return BusUnreachableError(f"Redis at {self._server.name} is not used any more: the server ends")

    async def _serve(self, client: Redis) -> None:
        """Use a new connection until it is lost."""
        connection = await client.connection_pool.get_connection()  # type: ignore[no-untyped-call]  # the library's
        self.on_connected()
        try:
            async with asyncio.timeout(None) as self._limit:
                while True:
                    await self._has_work.wait()
                    if await connection.can_read():  # Redis has closed it: what is unsent waits for the next one
                        raise ConnectionResetError
                    self._take_batch()
                    await self._send_batch(connection)
        finally:
            self._limit = None
            self._recover()

    def _take_batch(self) -> None:
        """Choose the commands that are sent next."""
        while self._unsent and len(self._sent) < MAX_BATCH:
            command = self._unsent.popleft()
            if command.reply.done():  # cancelled or expired before it was sent
                self._end(command)
            else:
                command.is_sent = True
                self._sent.append(command)
        if not self._unsent:
            self._has_work.clear()

    async def _send_batch(self, connection: AbstractConnection) -> None:
        """Raises OSError, and errors of the client library, if the connection is of no use."""
        data = connection.pack_commands([command.words for command in self._sent])
        await connection.send_packed_command(data, check_health=False)
        while self._sent:
            await self._take_reply(connection)

    async def _take_reply(self, connection: AbstractConnection) -> None:
        try:
            reply = await connection.read_response()
        except ResponseError as error:
            self._fail(self._sent.popleft(), self._server.unreachable(error))
            if isinstance(error, ReadOnlyError):  # after a failover: the next connection may lead to the new primary
                raise
            return
        command = self._sent.popleft()
        self._end(command)
        self.latency = self._loop.time() - command.began
        if not command.reply.done():
            command.reply.set_result(reply)

    def _recover(self) -> None:
        """Keep the sent commands that may be repeated, and fail the others."""
        lost, self._sent = self._sent, deque()
        failure = BusUnreachableError(f"Redis at {self._server.name} was lost before its reply")
        for command in reversed(lost):
            if command.may_repeat and not command.reply.done():
                command.is_sent = False
                self._unsent.appendleft(command)
            else:
                self._fail(command, failure)
        if self._unsent:
            self._has_work.set()

    def _expire(self, command: _PendingCommand) -> None:
        """Fail a command whose time is over. If it was sent, the connection is given up."""
        now = self._loop.time()
        if now - command.due > LATE and not command.is_postponed:  # this process did not run: a reply may be unread
            command.is_postponed = True  # once: thousands of commands may keep the process late for ever
            command.due = now + LATE
            command.timer = self._loop.call_at(command.due, self._expire, command)
            return
        _fail(command.reply, self.link.failure or self._server.unreachable(TimeoutError(), self._seconds))
        if self._limit is not None and command.is_sent:
            self._limit.reschedule(now)
            self._limit = None
        while self._unsent and self._unsent[0].reply.done():
            self._end(self._unsent.popleft())

    def _fail(self, command: _PendingCommand, failure: BusUnreachableError) -> None:
        self._end(command)
        _fail(command.reply, failure)

    def _end(self, command: _PendingCommand) -> None:
        self._size -= command.size
        if command.timer is not None:
            command.timer.cancel()


def _fail(reply: "asyncio.Future[Reply]", failure: BusUnreachableError) -> None:
    if not reply.done():
        reply.set_exception(BusUnreachableError(str(failure)))
        reply.exception()  # a caller that has gone is no fault to log
