"""Counts open connections, in all and by block of addresses. Where there is no room for one more, the one on which
nothing was asked for longest is closed. Knows no HTTP.

One sender has many addresses (server/auth/address_blocks.py), so each block around an address has a limit too. An
address that stands for many senders has none: a trusted proxy's, and this machine's own.
"""

from collections.abc import Callable
from typing import Protocol

from toolgate.server.auth.address_blocks import prefixes
from toolgate.server.config.types import is_loopback

MAX_CONNECTIONS = 4_096  # at once; each takes some 13 KiB, and a descriptor
NARROW, WIDE = 4, 2  # one address may have a quarter of all connections, the widest block around it half
SPARE = 64  # one in so many, beyond the limit, waits for its first request: probes are answered there, others not


class Connection(Protocol):
    def drop(self) -> None:
        """Close it: no request is being answered on it."""
        ...


class _BlockCount:
    """The connections of one block, or all."""

    __slots__ = ("idle", "most", "open")

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0
        self.idle: dict[Connection, None] = {}  # no request is being answered; the longest idle first

    def drop_idle(self, spared: int) -> None:
        """Close the longest idle one, if more than the `spared` last are idle and there are too many in all."""
        if self.open > self.most and len(self.idle) > spared:
            next(iter(self.idle)).drop()


class ConnectionSlot:
    """What one connection takes, in all and in each block that its address is in."""

    __slots__ = ("_connection", "_connections", "_rooms")

    def __init__(self, connections: "Connections", connection: Connection, rooms: dict[str, _BlockCount]) -> None:
        self._connections = connections
        self._connection = connection
        self._rooms = rooms

    def begin_request(self) -> bool:
        """A request has come. False: there are too many connections, and none that is idle."""
        is_full = False
        for room in self._rooms.values():
            room.idle.pop(self._connection, None)
            if room.open > room.most:
                room.drop_idle(0)
                is_full = is_full or room.open > room.most
        return not is_full

    def end_request(self) -> None:
        """It has been answered."""
        for room in self._rooms.values():
            room.idle[self._connection] = None

    def release(self) -> None:
        """The connection is closed, or about to be."""
        rooms, self._rooms = self._rooms, {}
        for block, room in rooms.items():
            room.open -= 1
            room.idle.pop(self._connection, None)
            self._connections.forget_block(block)


def is_local(address: str) -> bool:
    """Whether it is this machine's own, also where one socket serves IPv4 and IPv6."""
    return is_loopback(address.removeprefix("::ffff:"))


class Connections:
    """At most `most` of them. `is_exempt(address)` says which addresses stand for many senders."""

    def __init__(self, limit: int = MAX_CONNECTIONS, is_exempt: Callable[[str], bool] = is_local) -> None:
        self._most = limit
        self._is_exempt = is_exempt
        self._rooms: dict[str, _BlockCount] = {"": _BlockCount(limit)}  # by block; "" is all

    def __len__(self) -> int:
        return self._rooms[""].open

    def lower_limit(self, most: int) -> None:
        """Have no more than the process has descriptors for."""
        self._most = self._rooms[""].most = min(self._most, most)

    def add(self, connection: Connection, address: str) -> ConnectionSlot:
        """Count a new one. Where that is one too many, one that is idle for longer is dropped."""
        rooms = {block: self._rooms.setdefault(block, _BlockCount(most)) for block, most in self._limits(address)}
        place = ConnectionSlot(self, connection, rooms)
        for room in rooms.values():
            room.open += 1
            room.drop_idle(room.most // SPARE)
        place.end_request()
        return place

    def forget_block(self, block: str) -> None:
        """Drop a block that has no connections any more."""
        if block and not self._rooms[block].open:
            del self._rooms[block]

    def _limits(self, address: str) -> list[tuple[str, int]]:
        """Where a connection counts, and how many there may be: the narrowest block first."""
        everything = [("", self._most)]
        if not address or self._is_exempt(address):
            return everything
        *narrow, wide = prefixes(address)
        return [*((block, self._most // NARROW) for block in narrow), (wide, self._most // WIDE), *everything]
