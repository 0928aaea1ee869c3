"""Count open connections in all and by address block, and close the longest idle one when a block is full.

One sender has many addresses (server/auth/address_blocks.py), so each block around an address has a limit too. A
trusted proxy's address and this machine's own have none, as they stand for many senders.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from toolgate.server.auth.address_blocks import prefixes
from toolgate.server.config.types import is_loopback

MAX_CONNECTIONS = 4_096  # at once; each takes some 13 KiB, and a descriptor
NARROW, WIDE = 4, 2  # one address may have a quarter of all connections, its widest block half
SPARE = 64  # one in so many, beyond the limit, waits for its first request, so that probes are answered


class Connection(Protocol):
    def drop(self) -> None:
        """Close the connection: it is answering no request."""
        ...


class _BlockCount:
    """The connections of one block, or of all."""

    __slots__ = ("idle", "limit", "open")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.open = 0
        self.idle: dict[Connection, None] = {}  # answering no request; the longest idle first

    def drop_idle(self, spared: int) -> None:
        """Close the longest idle connection if the block is over its limit and has more than `spared` idle ones."""
        if self.open > self.limit and len(self.idle) > spared:
            next(iter(self.idle)).drop()


class ConnectionSlot:
    """One connection's place in the total and in each block of its address."""

    __slots__ = ("_blocks", "_connection", "_connections")

    def __init__(self, connections: "Connections", connection: Connection, blocks: dict[str, _BlockCount]) -> None:
        self._connections = connections
        self._connection = connection
        self._blocks = blocks

    def begin_request(self) -> bool:
        """Record the start of a request. Return False if a full block has no idle connection to close."""
        is_full = False
        for block in self._blocks.values():
            block.idle.pop(self._connection, None)
            if block.open > block.limit:
                block.drop_idle(0)
                is_full = is_full or block.open > block.limit
        return not is_full

    def end_request(self) -> None:
        """Record the end of a request."""
        for block in self._blocks.values():
            block.idle[self._connection] = None

    def release(self) -> None:
        """Remove a connection that is closed or about to be."""
        blocks, self._blocks = self._blocks, {}
        for name, block in blocks.items():
            block.open -= 1
            block.idle.pop(self._connection, None)
            self._connections.forget_block(name)
        if blocks:
            del self._connection  # which holds this
            self._connections.note_closed()


class Connections:
    """At most `limit` connections. `trusts(address)` is true for a proxy, which stands for many senders."""

    def __init__(self, limit: int = MAX_CONNECTIONS, trusts: Callable[[str], bool] | None = None) -> None:
        self.is_draining = False  # each connection closes after its next answer
        self._closed = asyncio.Event()
        self._limit = limit
        self._trusts = trusts
        self._blocks: dict[str, _BlockCount] = {"": _BlockCount(limit)}  # "" is all addresses

    def __len__(self) -> int:
        return self._blocks[""].open

    def note_closed(self) -> None:
        """Wake `wait_closed` if that was the last connection."""
        if self.is_draining and not len(self):
            self._closed.set()

    async def wait_closed(self) -> None:
        """Wait until no connection is open. The server no longer listens."""
        if len(self):
            await self._closed.wait()

    def lower_limit(self, most: int) -> None:
        """Lower the limit to the process's descriptors."""
        self._limit = self._blocks[""].limit = min(self._limit, most)

    def add(self, connection: Connection, address: str) -> ConnectionSlot:
        """Count a new connection. If that is one too many, the longest idle one is closed."""
        blocks = {block: self._blocks.setdefault(block, _BlockCount(most)) for block, most in self._limits(address)}
        place = ConnectionSlot(self, connection, blocks)
        for block in blocks.values():
            block.open += 1
            block.drop_idle(block.limit // SPARE)
        place.end_request()
        return place

    def forget_block(self, block: str) -> None:
        """Remove a block without connections."""
        if block and not self._blocks[block].open:
            del self._blocks[block]

    def _limits(self, address: str) -> list[tuple[str, int]]:
        """Return the blocks of the address and their limits, the narrowest first."""
        everything = [("", self._limit)]
        is_local = is_loopback(address.removeprefix("::ffff:"))  # one socket may serve IPv4 and IPv6
        if not address or is_local or (self._trusts is not None and self._trusts(address)):
            return everything
        *narrow, wide = prefixes(address)
        return [*((block, self._limit // NARROW) for block in narrow), (wide, self._limit // WIDE), *everything]
