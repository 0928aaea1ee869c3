"""Read and write the records of sessions in Redis, and the messages that wait for a session's reader."""

import time
from collections.abc import Callable

import msgspec

from toolgate.server.base.bus.bus import Keys
from toolgate.transports.http.sessions.sessions import IDLE

MAX_WAITING = 256 * 2**10  # bytes of unrequested messages that wait for a reader of one session; the newest stay


class WaitingMessage(msgspec.Struct, frozen=True, array_like=True):
    """An unrequested message. Only a reader with the scopes `wanted` gets it."""

    data: bytes
    wanted: tuple[str, ...] = ()


_waiting_decoder = msgspec.msgpack.Decoder(list[WaitingMessage])


class RedisSessionRecords:
    """The sessions of one transport by the digests of their ids. All methods raise BusUnreachableError. `now` is the
    clock of all replicas, in seconds since the epoch. A record ends `idle` seconds after its last use."""

    def __init__(self, keys: Keys, idle: float = IDLE, now: Callable[[], float] = time.time) -> None:
        self.now = now
        self._keys = keys
        self._idle = idle

    async def read(self, key: str) -> bytes | None:
        """Return a record, or None if the session has ended. The session lives on."""
        name = _name(key)
        [found] = await self._keys.get_many((name,), {name: self._idle})
        return found

    async def read_many(self, keys: list[str], *, touch: bool = False) -> list[bytes | None]:
        """Return the records of several sessions. With `touch` they live on."""
        names = [_name(key) for key in keys]
        return await self._keys.get_many(names, dict.fromkeys(names, self._idle) if touch else None)

    async def add(self, key: str, record: bytes) -> None:
        await self._keys.set(_name(key), record, self._idle)

    async def replace(self, key: str, old: bytes, new: bytes) -> bool:
        """Write a record if it still is `old`. Return whether it was."""
        return await self._keys.replace(_name(key), old, new, self._idle)

    async def remove(self, *keys: str) -> None:
        await self._keys.delete(*(name for key in keys for name in (_name(key), _name_waiting(key))))

    async def leave_message(self, key: str, message: WaitingMessage) -> None:
        """Add a message to those that wait for the session's reader, unless the same one waits."""
        name = _name_waiting(key)
        while True:
            old = await self._keys.get(name)
            waiting = [] if old is None else _waiting_decoder.decode(old)
            if message in waiting:
                return
            waiting.append(message)
            while len(waiting) > 1 and sum(len(each.data) for each in waiting) > MAX_WAITING:
                del waiting[0]
            new = msgspec.msgpack.encode(waiting)
            if old is None:
                is_written = await self._keys.set_if_absent(name, new, self._idle)
            else:
                is_written = await self._keys.replace(name, old, new, self._idle)
            if is_written:
                return

    async def take_messages(self, key: str) -> list[WaitingMessage]:
        """Return the messages that wait, once."""
        found = await self._keys.take(_name_waiting(key))
        return [] if found is None else _waiting_decoder.decode(found)


def _name(key: str) -> str:
    return f"session:{key}"


def _name_waiting(key: str) -> str:
    return f"waiting:{key}"
