"""Send commands to Redis over one connection, many at once, each with a time limit.

Commands of one turn of the event loop are written together, and replies come in order. A cancelled caller leaves its
reply to be read and dropped. Beside a lost connection a command waits for the next one, within its time limit. One that
was written may have been carried out, so it fails, unless it may be repeated.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from toolgate.server.base.bus.bus import BusUnreachableError
from toolgate.server.base.bus.redis.connection import (
    RedisConnection,
    RedisServer,
    RefusedError,
    Reply,
    ReplyProtocol,
    pack,
)
from toolgate.server.base.bus.redis.link import RedisLink

MAX_WAITING = 20_000  # commands without a reply: more than Redis carries out in a time limit, so they would fail
MAX_WAITING_SIZE = 64 * 2**20  # bytes of these: three of the largest values, and others
SLOWEST = 8 * 2**20  # bytes a second: large data gets so much more time, and so does what is sent after it
LATE = 0.1  # seconds: if the event loop is later than this, replies may have come meanwhile


class _PendingCommand(msgspec.Struct, eq=False):
    """A command without a reply, which fails when it is `due`. `may_repeat`: it changes nothing."""

    data: bytes
    reply: "asyncio.Future[Reply]"
    size: int
    began: float
    due: float
    may_repeat: bool


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
        self._protocol: ReplyProtocol | None = None
        self._is_flush_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.latency = 0.0
        self.on_connected: Callable[[], None] = lambda: None
        self.link = RedisLink(server, "commands", self._serve, seconds)

    def run(self, *words: str | bytes | int, may_repeat: bool = False, expected: int = 0) -> "asyncio.Future[Reply]":
        """Send a command, and return its reply. The reply's exception is a BusUnreachableError.

        may_repeat: it changes nothing
        expected: bytes that a large reply may have, for which it gets more time
        """
        return self.send(pack(*words), may_repeat=may_repeat, expected=expected)

    async def run_all(self, *commands: Sequence[str | bytes | int], may_repeat: bool = False) -> list[Reply]:
        """Send commands in one round trip, and return their replies. Raises BusUnreachableError."""
        replies = [self.run(*words, may_repeat=may_repeat) for words in commands]
        return [await reply for reply in replies]

    def send(self, data: bytes, *, may_repeat: bool = False, expected: int = 0) -> "asyncio.Future[Reply]":
        """Send a packed command, and return its reply."""
        size = len(data) + expected
        reply: asyncio.Future[Reply] = self._loop.create_future()
        now = self._loop.time()
        if (failure := self._find_failure(size)) is not None:
            _fail(reply, failure)
            return reply
        self._size += size
        due = now + self._seconds + self._size / SLOWEST
        self._unsent.append(_PendingCommand(data, reply, size, now, due, may_repeat))
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)
        if self._timer is None:
            self._timer = self._loop.call_later(due - now, self._check_time, due)
        return reply

    async def close(self) -> None:
        """Disconnect. Commands without a reply fail."""
        self._is_closed = True
        await self.link.close()
        if self._timer is not None:
            self._timer.cancel()
        self._fail_all(self._sent, self._closed_error())
        self._fail_all(self._unsent, self._closed_error())

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

    async def _serve(self, connection: RedisConnection) -> None:
        """Use a new connection until it is lost."""
        self.on_connected()
        self._protocol = connection.receive(self._take_reply, self._flush)
        self._flush()
        try:
            await self._protocol.ended
        finally:
            self._protocol = None
            self._recover()

    def _flush(self) -> None:
        """Send the commands of this turn of the event loop."""
        self._is_flush_due = False
        if self._protocol is None or not self._protocol.can_send:
            return
        batch: list[bytes] = []
        while self._unsent:
            command = self._unsent.popleft()
            if command.reply.done():  # cancelled before it was sent
                self._size -= command.size
            else:
                self._sent.append(command)
                batch.append(command.data)
        if batch:
            self._protocol.send(b"".join(batch))

    def _take_reply(self, reply: Reply) -> None:
        if not self._sent:
            raise ConnectionError("a reply without a command")
        command = self._sent.popleft()
        self._size -= command.size
        self.latency = self._loop.time() - command.began
        if command.reply.done():
            return
        if isinstance(reply, RefusedError):
            _fail(command.reply, self._server.unreachable(reply))
        else:
            command.reply.set_result(reply)

    def _recover(self) -> None:
        """Keep the written commands that may be repeated, and fail the others."""
        lost, self._sent = self._sent, deque()
        repeated = [command for command in lost if command.may_repeat and not command.reply.done()]
        failure = BusUnreachableError(f"Redis at {self._server.name} was lost before its reply")
        for command in lost:
            if not command.may_repeat or command.reply.done():
                self._size -= command.size
                _fail(command.reply, failure)
        self._unsent.extendleft(reversed(repeated))

    def _check_time(self, due: float) -> None:
        """Fail the commands whose time is over. If one of them was written, the connection is given up."""
        now = self._loop.time()
        self._timer = None
        if now - due > LATE:  # this process did not run: replies may be there, unread
            self._timer = self._loop.call_later(LATE, self._check_time, now + LATE)
            return
        failure = self._server.unreachable(TimeoutError(), self._seconds)
        is_overdue = False
        for command in self._sent:
            if command.due > now:
                break
            is_overdue = True
            _fail(command.reply, failure)
        if is_overdue:
            self.link.lose(failure)
        while self._unsent and self._unsent[0].due <= now:
            command = self._unsent.popleft()
            self._size -= command.size
            _fail(command.reply, self.link.failure or failure)
        oldest = next((command for command in self._sent if not command.reply.done()), None)
        oldest = oldest or (self._unsent[0] if self._unsent else None)
        if oldest is not None:
            due = max(oldest.due, now + 0.001)
            self._timer = self._loop.call_later(due - now, self._check_time, due)

    def _fail_all(self, commands: "deque[_PendingCommand]", failure: BusUnreachableError) -> None:
        for command in commands:
            _fail(command.reply, failure)
        commands.clear()


def _fail(reply: "asyncio.Future[Reply]", failure: BusUnreachableError) -> None:
    if not reply.done():
        reply.set_exception(BusUnreachableError(str(failure)))
        reply.exception()  # a caller that has gone is no fault to log
