"""Limit how many sessions one owner and one person have at all replicas together.

Each person has a list of sessions in Redis, in the order in which they were opened. It is approximate: ended sessions
stay in it until it is full, and of sessions that are opened at the same time some may be missing.
"""

import msgspec

from toolgate.server.base.bus.bus import Keys
from toolgate.server.base.principals.principal import Principal
from toolgate.server.features.replicas.sessions.record import decode_record
from toolgate.server.features.replicas.sessions.redis_records import RedisSessionRecords

DAY = 86_400.0  # seconds that a list lives after the last session was opened
TRIES = 5  # of writing a list that others change at the same time


class _CountedSession(msgspec.Struct, frozen=True, array_like=True):
    key: str
    owner: str


_decoder = msgspec.msgpack.Decoder(list[_CountedSession])


class SessionLimits:
    """The limits of one transport: sessions of one owner, and of one person."""

    def __init__(self, keys: Keys, records: RedisSessionRecords, per_owner: int, per_person: int) -> None:
        self._keys = keys
        self._records = records
        self._per_owner = per_owner
        self._per_person = per_person

    async def add(self, key: str, principal: Principal) -> list[str]:
        """Count a new session, and return those that must end for it, the longest unused first. Raises
        BusUnreachableError."""
        name, entry = f"sessions:{principal.name}", _CountedSession(key, principal.owner[:16])
        ended: list[str] = []
        for _ in range(TRIES):
            old = await self._keys.get(name)
            entries = [] if old is None else _decoder.decode(old)
            entries, ended = await self._make_room(entries, entry.owner)
            new = msgspec.msgpack.encode([*entries, entry])
            if old is None:
                is_written = await self._keys.set_if_absent(name, new, DAY)
            else:
                is_written = await self._keys.replace(name, old, new, DAY)
            if is_written:
                break
        return ended

    async def _make_room(self, entries: list[_CountedSession], owner: str) -> tuple[list[_CountedSession], list[str]]:
        """Return the sessions that stay, and those that must end."""
        if not self._is_full(entries, owner):
            return entries, []
        found = await self._records.read_many([entry.key for entry in entries])
        now = self._records.now()
        seen = {entry.key: _read_last_use(data, now) for entry, data in zip(entries, found, strict=True) if data}
        entries = [entry for entry in entries if entry.key in seen]
        ended: list[str] = []
        while self._is_full(entries, owner):
            own = [entry for entry in entries if entry.owner == owner]
            among = own if len(own) >= self._per_owner else entries
            oldest = min(among, key=lambda entry: seen[entry.key])
            entries.remove(oldest)
            ended.append(oldest.key)
        return entries, ended

    def _is_full(self, entries: list[_CountedSession], owner: str) -> bool:
        return len(entries) >= self._per_person or [entry.owner for entry in entries].count(owner) >= self._per_owner


def _read_last_use(data: bytes, now: float) -> float:
    record = decode_record(data)
    return now if record is None else record.seen
