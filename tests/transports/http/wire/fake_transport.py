"""A connection without a socket: a transport that records what the server writes and when it reads."""

import asyncio
import itertools
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from toolgate.server.base.limits.budget import Budget
from toolgate.transports.http.wire.connection import HttpConnection
from toolgate.transports.http.wire.connections import Connections
from toolgate.transports.http.wire.listener import ConnectionLimits, Listener
from toolgate.transports.http.wire.request import Handler

HIGH, LOW = 64 * 1024, 16 * 1024  # asyncio's water marks
TURNS = 10  # of the event loop without a change: then nothing more happens by itself


class FakeTransport(asyncio.Transport):
    """Records writes. `reads` is whether its peer takes them."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 40_000)})
        self.written = bytearray()
        self.unread = 0  # bytes that the peer has not taken
        self.reads = True
        self.is_reading_paused = False
        self.has_ended = False  # the server sends nothing more
        self.is_aborted = False
        self.protocol: asyncio.Protocol | None = None
        self._is_closing = False
        self._is_writing_paused = False

    def write(self, data: Any) -> None:
        assert not self.has_ended, "a write after the end"
        assert data, "an empty write"
        self.written += data
        if self.reads or self._is_closing:
            return
        self.unread += len(data)
        if self.unread > HIGH and not self._is_writing_paused and self.protocol is not None:
            self._is_writing_paused = True
            self.protocol.pause_writing()

    def take(self) -> None:
        """Let the peer read all."""
        self.unread = 0
        if self._is_writing_paused and self.protocol is not None:
            self._is_writing_paused = False
            self.protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self.unread

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_ended = True

    def pause_reading(self) -> None:
        assert not self.is_reading_paused
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        assert self.is_reading_paused
        self.is_reading_paused = False

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._lose)

    def abort(self) -> None:
        self.is_aborted = True
        self.close()

    def _lose(self) -> None:
        protocol, self.protocol = self.protocol, None
        if protocol is not None:
            protocol.connection_lost(None)


class FakeClient:
    """The client's side of one connection to `handler`."""

    def __init__(self, handler: Handler, limits: ConnectionLimits | None = None, budget: Budget | None = None) -> None:
        self.transport = FakeTransport()
        self.listener = Listener(handler, Connections(), budget or Budget(2**30, 2**30), limits=limits)
        self.server_state = SimpleNamespace(connections=set())
        self.connection = HttpConnection(self.listener, server_state=self.server_state)
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)

    async def send(self, *parts: bytes) -> None:
        """Send each part as a segment, while the server reads."""
        for part in parts:
            if self.is_closed:
                return
            if self.transport.is_reading_paused:
                await self.settle()
                assert not self.transport.is_reading_paused, "the server does not read on"
            self.connection.data_received(part)
            await self.settle()

    async def settle(self, turns: int = TURNS) -> None:
        """Wait until nothing more happens without the client. A task that sleeps does not count."""
        quiet, seen = 0, None
        while quiet < turns:
            await asyncio.sleep(0)
            state = (len(self.transport.written), self.transport.is_reading_paused, self.is_closed)
            quiet, seen = (quiet + 1 if state == seen else 0), state

    async def end(self) -> None:
        """Send the end of the client's bytes."""
        if not self.connection.eof_received():
            self.transport.close()
        await self.settle()

    async def hang_up(self) -> None:
        self.transport.abort()
        await self.settle()

    @property
    def is_closed(self) -> bool:
        """Whether the server sends nothing more."""
        return self.transport.has_ended or self.transport.is_closing()

    @property
    def answers(self) -> bytes:
        """What the server has sent, without the lines that depend on the time."""
        return re.sub(rb"date: [^\r]*\r\n", b"", bytes(self.transport.written))

    @property
    def statuses(self) -> list[int]:
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", self.transport.written)]


def run_client(
    work: Callable[[FakeClient], Any], handler: Handler, limits: ConnectionLimits | None = None, **settings: Any
) -> None:
    """Run `work` with a client, then close its connection, which leaves nothing behind."""

    async def main() -> None:
        async with asyncio.timeout(30):
            client = FakeClient(handler, limits, **settings)
            await work(client)
            await client.hang_up()
            assert client.listener.running == 0
            assert not client.listener.tasks
            assert not client.server_state.connections
            assert len(client.listener.connections) == 0

    asyncio.run(main())


def cut(data: bytes, *places: int) -> Sequence[bytes]:
    """Return `data` in parts."""
    borders = [0, *sorted(place for place in set(places) if 0 < place < len(data)), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(borders)]
