"""Hold what all connections of one server share: the handler, the limits, the clock and the writes of one turn."""

import asyncio
from collections import Counter
from collections.abc import Collection
from contextvars import Context, copy_context
from email.utils import formatdate
from typing import Any, Protocol

import msgspec

from toolgate.server.base.http.head import Head
from toolgate.server.base.limits.budget import Budget
from toolgate.transports.http.wire.connections import Connections
from toolgate.transports.http.wire.request import Handler

MAX_QUEUED = 16 * 1024  # bytes of an answer that waits for the end of the turn


class ConnectionLimits(msgspec.Struct, frozen=True):
    """How long a client may take, in seconds. Each is looked at once every `tick`."""

    head: float = 15.0  # for a whole head
    body: float = 15.0  # for a body, and one more for each `rate` bytes of it
    rate: int = 16 * 1024  # bytes a second: 16 MiB may take 17 minutes
    quiet: float = 5.0  # without a byte of a refused body: then its client waits for the answer
    idle: float = 130.0  # between requests: longer than proxies keep a connection (nginx 60, Traefik 90, Caddy 120)
    unread: float = 60.0  # until a client has read 64 KiB
    linger: float = 2.0  # for a client to read the last answer
    tick: float = 1.0


class TimedConnection(Protocol):
    deadline: float

    def expire(self) -> None:
        """End what has taken too long."""
        ...


class Listener:
    """What all connections share.

    - `handler` answers requests. Each runs in context variables of its own.
    - `connections` bounds connections by address. `probes` are paths that are answered however many there are.
    - `answers` bounds what the clients of a principal leave unread.
    """

    def __init__(
        self,
        handler: Handler,
        connections: Connections,
        answers: Budget,
        probes: Collection[str] = (),
        limits: ConnectionLimits | None = None,
    ) -> None:
        self.handler = handler
        self.connections = connections
        self.answers = answers
        self.probes = frozenset(probes)
        self.limits = limits or ConnectionLimits()
        self.answered: Counter[int] = Counter()  # by status
        self.running = 0  # requests, open streams included
        self.common = b""  # header lines of all answers
        self.tasks: set[asyncio.Task[Any]] = set()
        self._open: set[TimedConnection] = set()
        self.context = copy_context()  # each request gets a copy
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []
        self._sent_at = 0.0  # loop time of the last write
        self._sender = 0  # `id` of the transport that wrote last

    def add(self, connection: TimedConnection) -> None:
        """Watch the deadline of a connection."""
        self._open.add(connection)
        if self._timer is None:
            self._tick()

    def discard(self, connection: TimedConnection) -> None:
        self._open.discard(connection)

    def is_probe(self, head: Head) -> bool:
        """Return whether a request is answered however many connections there are."""
        return head.path in self.probes and not head.query

    def send(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, data: bytes) -> None:
        """Write an answer: at once if it is the first in a millisecond, else with others at the end of the turn.

        A system call after each request leaves the processor's caches cold for the next one.
        """
        now = loop.time()
        if self._waiting:
            self._waiting.append((transport, data))
        elif len(data) > MAX_QUEUED or id(transport) == self._sender or now - self._sent_at >= 0.001:
            self._sender, self._sent_at = id(transport), now
            transport.write(data)
        else:
            self._waiting.append((transport, data))
            loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what waits."""
        waiting, self._waiting = self._waiting, []
        for transport, data in waiting:
            if not transport.is_closing():  # else uvloop raises
                transport.write(data)

    def start(self, work: Any, context: Context) -> "asyncio.Task[Any]":
        """Run work in a task of this server."""
        task = asyncio.get_running_loop().create_task(work, context=context)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self.common = f"date: {formatdate(usegmt=True)}\r\n".encode()
        now = loop.time()
        self._timer = loop.call_later(self.limits.tick, self._tick) if self._open else None  # whatever fails below
        for connection in [connection for connection in self._open if connection.deadline < now]:
            connection.expire()
