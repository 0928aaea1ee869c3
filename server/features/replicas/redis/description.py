"""Describe a Redis or Valkey to `toolgate doctor`: what it is, how it is set, and whether it accepts what a bus sends.

Nothing stays there but a value of one second.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import msgspec

from toolgate.server.base.bus.settings import PREFIX
from toolgate.server.features.replicas.redis.connection import Redis, RedisServer, ResponseError
from toolgate.server.features.replicas.redis.replica import DEPLOYMENTS
from toolgate.server.features.replicas.redis_url import RedisUrl

TIMEOUT = 3.0  # seconds to connect
TRIES = 3  # questions, of which the fastest counts
WRITE = "redis.call('SET', KEYS[1], ARGV[1], 'PX', 1000) return redis.call('GETDEL', KEYS[1])"


class RedisDescription(msgspec.Struct, frozen=True):
    """A Redis, as it says itself. `refusal` says why it does not accept what a bus writes, "" if it does.

    policy: what it evicts when its memory is full; most_memory: 0 without a limit
    saves: whether it writes its data to disk; None where it does not say
    servers: how many of this deployment hold a lease
    latency: seconds of a question
    others: further deployments that use it: id → servers; "" for those of an earlier release
    deployment: the id of this one, or ""
    """

    product: str
    version: str
    policy: str
    used_memory: int
    most_memory: int
    saves: bool | None
    is_cluster: bool
    is_copy: bool
    refusal: str
    servers: int
    latency: float
    others: dict[str, int] = {}
    deployment: str = ""


async def describe_redis(url: RedisUrl, deployment: str | None) -> RedisDescription:
    """Return what Redis says to a server of this deployment, or to the first one of its database.

    Raises BusUnreachableError, and ValueError for an invalid URL.
    """
    async with _connect(url) as (server, client):
        return await _describe(server, client, deployment)


async def read_clock(url: RedisUrl, now: Callable[[], float] = time.time) -> tuple[float, float, float]:
    """Return the time of Redis, between two of this machine. Raises BusUnreachableError, and ValueError."""
    async with _connect(url) as (_, client):
        before = now()
        seconds, microseconds = await client.time()
        return before, seconds + microseconds / 1e6, now()


@contextlib.asynccontextmanager
async def _connect(url: RedisUrl) -> AsyncGenerator[tuple[RedisServer, Redis]]:
    server = RedisServer(url)
    async with server.connect(TIMEOUT) as client:
        try:
            async with asyncio.timeout(TIMEOUT):
                yield server, client
        except Exception as error:  # noqa: BLE001  # of the library, of TLS, or of a reply that is none
            raise server.unreachable(error, TIMEOUT) from None


async def _describe(server: RedisServer, client: Redis, deployment: str | None) -> RedisDescription:
    servers = await _count_servers(client)
    facts: dict[str, Any] = await _ask(client.info()) or {}
    saving: dict[str, str] = await _ask(client.config_get("save")) or {}
    return RedisDescription(
        product="Valkey" if "valkey_version" in facts else "Redis",
        version=str(facts.get("valkey_version") or facts.get("redis_version", "")),
        policy=facts.get("maxmemory_policy", ""),
        used_memory=facts.get("used_memory", 0),
        most_memory=facts.get("maxmemory", 0),
        saves=facts.get("aof_enabled") == 1 or (bool(saving["save"]) if saving else None),
        is_cluster=facts.get("cluster_enabled") == 1,
        is_copy=facts.get("role") == "slave",
        refusal=await _try_to_write(server, client),
        servers=0 if deployment is None else servers.pop(deployment, 0),
        latency=await _measure(client),
        others=servers,
        deployment=deployment or "",
    )


async def _try_to_write(server: RedisServer, client: Redis) -> str:
    """Return why a script that writes, or a message, is refused, or ""."""
    key, word = f"{PREFIX}doctor:{secrets.token_hex(8)}", secrets.token_hex(8)
    try:
        await client.eval(WRITE, 1, key, word)
        await client.publish(f"{PREFIX}doctor", word)
    except ResponseError as error:
        return str(server.unreachable(error))
    return ""


async def _count_servers(client: Redis) -> dict[str, int]:
    """Return how many servers of each deployment hold a lease. Replicas whose prefix names none are under ""."""
    now = await _ask(client.time())
    begin = "+inf" if now is None else now[0] * 1000  # a lease is scored by when it ends
    prefixes: list[bytes] = await _ask(client.zrangebyscore(DEPLOYMENTS, begin, "+inf")) or []
    servers = dict[str, int]()
    for name in (prefix.decode("utf-8", "replace") for prefix in prefixes):
        count: int | None = await _ask(client.zcount(f"{name}replicas", begin, "+inf"))
        servers[name.removeprefix(PREFIX).removesuffix(":")] = count or 0
    earlier: list[bytes] | None = await _ask(client.zrangebyscore(f"{PREFIX}replicas", begin, "+inf"))
    upgraded: set[bytes] | None = await _ask(client.smembers(f"{PREFIX}upgraded"))
    if earlier and upgraded is not None and (left := set(earlier) - upgraded):
        servers[""] = len(left)
    return servers


async def _measure(client: Redis) -> float:
    taken: list[float] = []
    for _ in range(TRIES):
        begun = time.perf_counter()
        await client.ping()
        taken.append(time.perf_counter() - begun)
    return min(taken)


async def _ask(question: Awaitable[Any]) -> Any:
    """Return the reply, or None if Redis refuses the question."""
    try:
        return await question
    except ResponseError:
        return None
