"""Hold keys with an end in Redis, each change one command or one atomic script."""

import math
from collections.abc import Mapping, Sequence

from toolgate.server.base.bus.bus import KeyLimit, Reservation, check_data, check_name, check_seconds
from toolgate.server.features.replicas.redis.commands import RedisCommands

REPLACE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""
INCREMENT = """
local total = redis.call('INCRBY', KEYS[1], ARGV[1])
if redis.call('PTTL', KEYS[1]) < 0 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return total
"""
RESERVE = """
local room, ends, full = {}, {}, false
for number, key in ipairs(KEYS) do
    local most, seconds = tonumber(ARGV[3 * number - 2]), tonumber(ARGV[3 * number - 1])
    room[number], ends[number] = most - tonumber(redis.call('GET', key) or 0), 0
    if room[number] < 1 then
        local left = redis.call('PTTL', key)
        full, ends[number] = true, left < 0 and seconds or math.max(left, 1)
    end
end
for number, key in ipairs(KEYS) do
    room[number] = full and 0 or math.min(room[number], tonumber(ARGV[3 * number]))
    if not full then
        if redis.call('INCRBY', key, room[number]) == room[number] then
            redis.call('PEXPIRE', key, ARGV[3 * number - 1])
        end
        ends[number] = redis.call('PTTL', key)
    end
end
return {room, ends}
"""


class RedisKeys:
    """The keys that begin with `prefix`."""

    def __init__(self, commands: RedisCommands, prefix: str) -> None:
        self._commands = commands
        self._prefix = prefix

    async def get(self, key: str) -> bytes | None:
        value: bytes | None = await self._commands.run("GET", self._name(key), may_repeat=True)
        return value

    async def get_many(self, keys: Sequence[str], touch: Mapping[str, float] | None = None) -> list[bytes | None]:
        if len(keys) == 1 and touch and len(touch) == 1 and keys[0] in touch:  # a session's record, with each request
            words = "GETEX", self._name(keys[0]), "PX", _milliseconds(touch[keys[0]])
            return [await self._commands.run(*words, may_repeat=True)]
        touches = [("PEXPIRE", self._name(key), _milliseconds(seconds)) for key, seconds in (touch or {}).items()]
        if not keys:
            return []
        values: list[bytes | None]
        *_, values = await self._commands.run_all(
            *touches, ("MGET", *(self._name(key) for key in keys)), may_repeat=True
        )
        return values

    async def set(self, key: str, value: bytes, seconds: float) -> None:
        check_data(value)
        await self._commands.run("SET", self._name(key), value, "PX", _milliseconds(seconds))

    async def set_if_absent(self, key: str, value: bytes, seconds: float) -> bool:
        check_data(value)
        reply = await self._commands.run("SET", self._name(key), value, "PX", _milliseconds(seconds), "NX")
        return reply is not None

    async def replace(self, key: str, old: bytes, new: bytes, seconds: float) -> bool:
        check_data(new)
        reply = await self._commands.run("EVAL", REPLACE, 1, self._name(key), old, new, _milliseconds(seconds))
        return bool(reply)

    async def take(self, key: str) -> bytes | None:
        value: bytes | None = await self._commands.run("GETDEL", self._name(key))
        return value

    async def delete(self, *keys: str) -> int:
        count: int = await self._commands.run("DEL", *(self._name(key) for key in keys)) if keys else 0
        return count

    async def touch(self, key: str, seconds: float) -> bool:
        reply = await self._commands.run("PEXPIRE", self._name(key), _milliseconds(seconds), may_repeat=True)
        return bool(reply)

    async def increment(self, key: str, seconds: float, by: int = 1) -> int:
        total: int = await self._commands.run("EVAL", INCREMENT, 1, self._name(key), by, _milliseconds(seconds))
        return total

    async def count(self, limits: Sequence[KeyLimit]) -> float:
        reserved = await self.reserve(limits, [1] * len(limits))
        return max((each.seconds for each in reserved if not each.granted), default=0.0)

    async def reserve(self, limits: Sequence[KeyLimit], counts: Sequence[int]) -> list[Reservation]:
        names = [self._name(limit.key) for limit in limits]
        numbers = [
            number
            for limit, count in zip(limits, counts, strict=True)
            for number in (limit.most, _milliseconds(limit.seconds), count)
        ]
        room, ends = await self._commands.run("EVAL", RESERVE, len(names), *names, *numbers)
        return [Reservation(count, end / 1_000) for count, end in zip(room, ends, strict=True)]

    def _name(self, key: str) -> str:
        check_name(key)
        return f"{self._prefix}key:{key}"


def _milliseconds(seconds: float) -> int:
    check_seconds(seconds)
    return math.ceil(seconds * 1_000)
