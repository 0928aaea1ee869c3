"""Hold keys with an end in Redis, each change one command or one atomic script."""

import math
from collections.abc import Mapping, Sequence

from toolgate.server.bus.bus import KeyLimit, check_data, check_name, check_seconds
from toolgate.server.bus.redis.commands import RedisCommands

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
COUNT = """
local wait = 0
for number, key in ipairs(KEYS) do
    if tonumber(redis.call('GET', key) or 0) >= tonumber(ARGV[2 * number - 1]) then
        local left = redis.call('PTTL', key)
        if left < 0 then left = tonumber(ARGV[2 * number]) end
        wait = math.max(wait, left, 1)
    end
end
if wait > 0 then return wait end
for number, key in ipairs(KEYS) do
    if redis.call('INCR', key) == 1 then redis.call('PEXPIRE', key, ARGV[2 * number]) end
end
return 0
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
        names = [self._name(limit.key) for limit in limits]
        numbers = [number for limit in limits for number in (limit.most, _milliseconds(limit.seconds))]
        wait: int = await self._commands.run("EVAL", COUNT, len(names), *names, *numbers)
        return wait / 1_000

    def _name(self, key: str) -> str:
        check_name(key)
        return f"{self._prefix}key:{key}"


def _milliseconds(seconds: float) -> int:
    check_seconds(seconds)
    return math.ceil(seconds * 1_000)
