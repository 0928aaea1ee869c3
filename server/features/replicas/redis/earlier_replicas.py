"""Live beside replicas whose prefix names no deployment, during an upgrade. 0.1 only: drop with 0.2.

They and the new ones take over the work of dead replicas from one database. So each must know that the other lives.
While an earlier replica holds a lease, a new one holds a lease in the earlier set, too, and is marked there as new.
"""

import asyncio

from toolgate.server.base.bus.settings import PREFIX, LeaseTimes
from toolgate.server.features.replicas.redis.commands import RedisCommands
from toolgate.server.features.replicas.redis.connection import Reply

BEGIN = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local name, lease, memory = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local score = tonumber(redis.call('ZSCORE', KEYS[1], name) or 0)
"""
RENEW = f"""{BEGIN}
local earlier = {{}}
for _, each in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now, now + 2 * lease)) do
    if redis.call('SISMEMBER', KEYS[2], each) == 0 then table.insert(earlier, each) end
end
if score < 0 then return {{0, earlier}} end
if #earlier > 0 then
    redis.call('SADD', KEYS[2], name)
    redis.call('PEXPIRE', KEYS[2], memory)
    redis.call('ZADD', KEYS[1], now + lease, name)
end
return {{1, earlier}}
"""
FIND_DEAD = f"""{BEGIN}
if score >= now then return 0 end
if score > 0 then redis.call('ZADD', KEYS[1], -now, name) end
return 1
"""
LEAVE = f"{BEGIN} if score > 0 then redis.call('ZADD', KEYS[1], -now, name) end"


class EarlierReplicas:
    """The replicas of earlier releases on this Redis. `name` is this replica's."""

    def __init__(self, commands: RedisCommands, name: str, times: LeaseTimes) -> None:
        self._commands = commands
        self._name = name
        self._times = times
        self._living: frozenset[str] = frozenset()

    def list_living(self) -> frozenset[str]:
        """Return the earlier replicas that held a lease when this one last renewed its own."""
        return self._living

    async def renew(self) -> bool:
        """Look for earlier replicas, and hold a lease among them if there are any. Return False if one of them has
        found this replica dead. Raises BusUnreachableError."""
        is_held, living = await self._run(RENEW, self._name)
        self._living = frozenset(name.decode() for name in living)
        return bool(is_held)

    async def find_dead(self, name: str) -> bool:
        """Return whether a replica holds no lease among the earlier ones. The verdict is final."""
        return bool(await self._run(FIND_DEAD, name))

    async def leave(self) -> None:
        """End this replica's lease among the earlier ones. Raises BusUnreachableError."""
        await self._run(LEAVE, self._name)

    def _run(self, script: str, name: str) -> "asyncio.Future[Reply]":
        spans = [round(1_000 * seconds) for seconds in (self._times.lease, self._times.memory)]
        return self._commands.run("EVAL", script, 2, f"{PREFIX}replicas", f"{PREFIX}upgraded", name, *spans)
