"""Describe a Redis or Valkey to `toolgate doctor`: what it is, how it is set, and whether it accepts what a bus sends.

Nothing stays there but a value of one second.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Callable

import msgspec

from toolgate.server.base.bus.redis.connection import RedisConnection, RedisServer, RefusedError, Reply, pack
from toolgate.server.base.bus.redis.replica import DEPLOYMENTS
from toolgate.server.base.bus.redis_url import RedisUrl
from toolgate.server.base.bus.settings import PREFIX

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
    async with _connect(url) as (server, connection):
        return await _describe(server, connection, deployment)


async def read_clock(url: RedisUrl, now: Callable[[], float] = time.time) -> tuple[float, float, float]:
    """Return the time of Redis, between two of this machine. Raises BusUnreachableError, and ValueError."""
    async with _connect(url) as (_, connection):
        before = now()
        seconds, microseconds = await _ask(connection, "TIME")
        return before, int(seconds) + int(microseconds) / 1e6, now()


@contextlib.asynccontextmanager
async def _connect(url: RedisUrl) -> AsyncGenerator[tuple[RedisServer, RedisConnection]]:
    server = RedisServer(url)
    connection = await server.connect(TIMEOUT)
    try:
        async with asyncio.timeout(TIMEOUT):
            yield server, connection
    except Exception as error:  # noqa: BLE001  # of the library, of TLS, or of a reply that is none
        raise server.unreachable(error, TIMEOUT) from None
    finally:
        await connection.close()


async def _describe(server: RedisServer, connection: RedisConnection, deployment: str | None) -> RedisDescription:
    servers = await _count_servers(connection)
    facts = _parse_info(await _ask(connection, "INFO"))
    product = "Valkey" if "valkey_version" in facts else "Redis"
    saving = await _ask(connection, "CONFIG", "GET", "save")
    saves = facts.get("aof_enabled") == "1" or (bool(saving[1]) if isinstance(saving, list) and saving else None)
    return RedisDescription(
        product=product,
        version=facts.get("valkey_version") or facts.get("redis_version", ""),
        policy=facts.get("maxmemory_policy", ""),
        used_memory=int(facts.get("used_memory", 0)),
        most_memory=int(facts.get("maxmemory", 0)),
        saves=saves,
        is_cluster=facts.get("cluster_enabled") == "1",
        is_copy=facts.get("role") == "slave",
        refusal=await _try_to_write(server, connection),
        servers=0 if deployment is None else servers.pop(deployment, 0),
        latency=await _measure(connection),
        others=servers,
        deployment=deployment or "",
    )


async def _try_to_write(server: RedisServer, connection: RedisConnection) -> str:
    """Return why a script that writes, or a message, is refused, or ""."""
    key, word = f"{PREFIX}doctor:{secrets.token_hex(8)}", secrets.token_hex(8)
    try:
        for words in (("EVAL", WRITE, 1, key, word), ("PUBLISH", f"{PREFIX}doctor", word)):
            reply = await _ask(connection, *words)
            if isinstance(reply, RefusedError):
                return str(server.unreachable(reply))
    except (OSError, EOFError):
        raise
    except Exception as error:  # noqa: BLE001  # read-only, for example
        return str(server.unreachable(error))
    return ""


async def _count_servers(connection: RedisConnection) -> dict[str, int]:
    """Return how many servers of each deployment hold a lease. Replicas whose prefix names none are under ""."""
    now = await _ask(connection, "TIME")
    begin = int(now[0]) * 1000 if isinstance(now, list) else "+inf"  # a lease is scored by when it ends
    prefixes = await _ask(connection, "ZRANGEBYSCORE", DEPLOYMENTS, begin, "+inf")
    names = [prefix.decode("utf-8", "replace") for prefix in prefixes] if isinstance(prefixes, list) else []
    servers = dict[str, int]()
    for name in names:
        count = await _ask(connection, "ZCOUNT", f"{name}replicas", begin, "+inf")
        servers[name.removeprefix(PREFIX).removesuffix(":")] = count if isinstance(count, int) else 0
    earlier = await _ask(connection, "ZRANGEBYSCORE", f"{PREFIX}replicas", begin, "+inf")
    upgraded = await _ask(connection, "SMEMBERS", f"{PREFIX}upgraded")
    if isinstance(earlier, list) and isinstance(upgraded, list) and (left := set(earlier) - set(upgraded)):
        servers[""] = len(left)
    return servers


async def _measure(connection: RedisConnection) -> float:
    taken: list[float] = []
    for _ in range(TRIES):
        begun = time.perf_counter()
        await _ask(connection, "PING")
        taken.append(time.perf_counter() - begun)
    return min(taken)


async def _ask(connection: RedisConnection, *words: str | int) -> Reply:
    await connection.write(pack(*words))
    return await connection.read()


def _parse_info(reply: Reply) -> dict[str, str]:
    """Return the fields of INFO; none where it is refused."""
    if not isinstance(reply, bytes):
        return {}
    lines = (line.partition(":") for line in reply.decode("utf-8", "replace").splitlines())
    return {name: value for name, separator, value in lines if separator}
