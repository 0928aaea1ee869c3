"""Hold this replica's lease in Redis, and find out which other replicas live.

One sorted set has all replicas of a deployment: a positive score is when the lease ends, a negative one when the
replica was found dead, both by the clock of Redis. The verdict is final, so a process that was frozen learns of it
when it renews its lease. When no replica has renewed for a while, Redis itself was away or lost its data: then nobody
is found dead until all had time to return.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from toolgate.server.base.bus.bus import BusUnreachableError
from toolgate.server.base.bus.replica_ids import create_name, is_name
from toolgate.server.base.bus.settings import PREFIX, LeaseTimes
from toolgate.server.features.replicas.redis.commands import RedisCommands
from toolgate.server.features.replicas.redis.connection import Reply
from toolgate.server.features.replicas.redis.earlier_replicas import EarlierReplicas

DEPLOYMENTS = f"{PREFIX}deployments"  # the prefixes in use, for `toolgate doctor`; scored like replicas
MAX_REPLICAS = 10_000  # names in Redis: clients can invent names of replicas that never were

BEGIN = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local name, lease, pause, mercy, memory = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
redis.call('ZREMRANGEBYSCORE', KEYS[1], now + 2 * lease, '+inf')
local newest = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
if not newest or tonumber(newest) < now + lease - pause then redis.call('SET', KEYS[2], 1, 'PX', mercy) end
local score = tonumber(redis.call('ZSCORE', KEYS[1], name) or 0)
"""  # scores too far in the future are from before the clock was set back
RENEW = f"""{BEGIN}
if score < 0 then return 0 end
redis.call('ZADD', KEYS[1], now + lease, name)
redis.call('ZREMRANGEBYSCORE', KEYS[1], memory - now, now - memory)
if KEYS[3] then
    redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
    redis.call('ZADD', KEYS[3], now + lease, ARGV[6])
end
return 1
"""
IS_ALIVE = f"""{BEGIN}
if score < 0 then return 0 end
if score >= now or redis.call('EXISTS', KEYS[2]) == 1 then return 1 end
if score > 0 or redis.call('ZCARD', KEYS[1]) < {MAX_REPLICAS} then redis.call('ZADD', KEYS[1], -now, name) end
return 0
"""
FIND_ENDED = f"""{BEGIN}
if score < 0 then return 1 end
if redis.call('EXISTS', KEYS[2]) == 1 or redis.call('PUBSUB', 'NUMSUB', ARGV[6])[2] > 0 then return 0 end
if score > 0 then redis.call('ZADD', KEYS[1], -now, name) end
return 1
"""  # the system closes the connections of a process that ends, and keeps those of a frozen one open
SEND = f"""{BEGIN}
if score < 0 or (score < now and redis.call('EXISTS', KEYS[2]) == 0) then return 0 end
return redis.call('PUBLISH', ARGV[6], ARGV[7])
"""
LEAVE = f"{BEGIN} redis.call('ZADD', KEYS[1], -now, name)"
LIST = f"{BEGIN} return redis.call('ZRANGEBYSCORE', KEYS[1], now, '+inf')"

log = logging.getLogger("toolgate.bus")


class RedisReplica:
    """The lease of this process. `on_lost` is called once, when another replica has found this one dead."""

    def __init__(
        self,
        commands: RedisCommands,
        prefix: str,
        times: LeaseTimes,
        on_lost: Callable[[], None],
        *,
        meets_earlier: bool = False,
    ) -> None:
        self.name = create_name()
        self._earlier = EarlierReplicas(commands, self.name, times) if meets_earlier else None
        self._commands = commands
        self._prefix = prefix
        self._times = times
        self._on_lost = on_lost
        self._is_lost = False
        self._renewed_at = float("-inf")
        self._wake = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="Redis: lease")

    @property
    def lease_age(self) -> float:
        """Seconds since the lease was last renewed."""
        return _now() - self._renewed_at

    def holds_lease(self) -> bool:
        return not self._is_lost and self.lease_age < self._times.lease

    async def is_alive(self, name: str) -> bool:
        if not is_name(name):
            return False
        if name in self.list_earlier() or bool(await self._run_script(IS_ALIVE, name)):
            return True
        return self._earlier is not None and not await self._earlier.find_dead(name)

    async def find_ended(self, name: str) -> bool:
        if name in self.list_earlier():
            return False
        return not is_name(name) or bool(await self._run_script(FIND_ENDED, name, mail_channel(self._prefix, name)))

    async def list_names(self) -> list[str]:
        names: list[bytes] = await self._run_script(LIST, self.name, may_repeat=True)
        return sorted(name.decode() for name in names)

    def list_earlier(self) -> frozenset[str]:
        return frozenset() if self._earlier is None else self._earlier.list_living()

    async def publish_to(self, name: str, channel: str, data: bytes) -> int:
        """Publish to a replica that has a lease. Return how many processes received it. Raises BusUnreachableError."""
        if not is_name(name):
            return 0
        count: int = await self._run_script(SEND, name, channel, data)
        return count

    async def renew(self) -> bool:
        """Renew the lease. Return whether this replica holds it."""
        began = _now()
        try:
            is_renewed = self._earlier is None or await self._earlier.renew()
            is_renewed = bool(await self._run_script(RENEW, self.name, self._prefix)) and is_renewed
        except BusUnreachableError:
            return False
        if is_renewed:
            self._renewed_at = began
        else:
            self._lose()
        return is_renewed

    def renew_soon(self) -> None:
        """Renew the lease now: Redis is connected again."""
        self._wake.set()

    async def close(self) -> None:
        """End the lease: other replicas find this one dead at once."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._is_lost:
            try:
                await self._run_script(LEAVE, self.name)
                if self._earlier is not None:
                    await self._earlier.leave()
            except BusUnreachableError as error:
                log.warning("the lease of this replica ends by itself: %s", error)

    async def _run(self) -> None:
        while not self._is_lost:
            self._wake.clear()
            await self.renew()
            try:
                async with asyncio.timeout(self._times.renewal):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _run_script(
        self, script: str, name: str, *words: str | bytes, may_repeat: bool = False
    ) -> "asyncio.Future[Reply]":
        times = self._times
        spans = [round(1_000 * seconds) for seconds in (times.lease, times.pause, times.mercy, times.memory)]
        keys = [f"{self._prefix}replicas", f"{self._prefix}mercy"]
        keys += [DEPLOYMENTS] if self._prefix.startswith(PREFIX) else []
        return self._commands.run("EVAL", script, len(keys), *keys, name, *spans, *words, may_repeat=may_repeat)

    def _lose(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            log.error("replica %s lost its lease: another replica has found it dead", self.name)
            self._on_lost()


def mail_channel(prefix: str, name: str) -> str:
    """Return the channel of a replica's mail, which its process subscribes to as long as it runs."""
    return f"{prefix}mail:{name}"


def _now() -> float:
    """Return seconds of a clock that also runs while the machine is suspended, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
