"""Check Redis: whether it is reached, suits and has room, and who else uses it."""

from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING

from toolgate.server.base.text import format_size
from toolgate.server.cli.doctor.report import CheckError, CheckFinding, CheckNote, DoctorPart
from toolgate.server.cli.terminal.output import format_count
from toolgate.server.config.load import Config
from toolgate.server.config.types import is_loopback
from toolgate.tools.api.installation import name_extra

if TYPE_CHECKING:
    from toolgate.server.features.replicas.redis.description import RedisDescription
    from toolgate.server.features.replicas.redis_url import RedisUrl

OLDEST = (6, 2)  # of Redis: the first with GETDEL
SLOW = 0.01  # seconds: each request of a session asks Redis once
FULL = 0.8  # of Redis' memory
NOEVICTION = "maxmemory-policy noeviction, in its configuration and by CONFIG SET: an evicted key ends its session"
NO_SAVES = 'save "" and appendonly no in its configuration: clients initialize again after a loss'


def list_checks(config: Config) -> DoctorPart:
    """Return the checks that --redis asks for."""
    checks = [("Redis", partial(redis, config), ())]
    return DoctorPart(checks, after="state database", clocks={"Redis": partial(_read_clock, config)})


async def redis(config: Config) -> CheckFinding:
    """Check that Redis is reached, suits and has room."""
    from toolgate.server.base.bus.bus import BusUnreachableError  # start-up

    try:
        from toolgate.server.features.replicas.redis.description import describe_redis  # start-up

        return judge_redis(config.redis, await describe_redis(config.redis, await _read_deployment(config)))
    except ModuleNotFoundError:
        raise CheckError("a package is missing", name_extra("replicas")) from None
    except (BusUnreachableError, ValueError) as error:
        raise CheckError(str(error), "start it, or correct --redis") from None


async def _read_deployment(config: Config) -> str | None:
    """Return the id of the servers on this database, or None. The check of the database says why it can't be read."""
    if not config.is_given("database"):
        return None
    from toolgate.server.app.features import open_store
    from toolgate.server.base.errors import StateError
    from toolgate.server.features.replicas.deployment import read_deployment  # start-up

    async with aclosing(open_store(config, upgrades=False)) as store:
        with suppress(StateError):
            return await store.read(read_deployment)
    return None


def _describe_others(others: Mapping[str, int]) -> str:
    """Return the deployments that are not this database's, for people."""
    named = [
        f"{format_count(servers, 'server')} of {f'deployment {id}' if id else 'an earlier release'}"
        for id, servers in sorted(others.items())
    ]
    return ", ".join(named)


def judge_redis(url: "RedisUrl", found: "RedisDescription") -> CheckFinding:
    """Return the finding about a Redis by what it says of itself. Raises CheckError."""
    size = f" of {format_size(found.most_memory)}" if found.most_memory else ""
    told = f"{found.product} {found.version} at {url}; uses {format_size(found.used_memory)}{size}"
    told += f", {found.policy}; answers in {found.latency * 1000:.1f} ms; {format_count(found.servers, 'server')}"
    told += f" of this database, deployment {found.deployment}" if found.deployment else " of this database"
    if found.product == "Redis" and found.version and _parse_version(found.version) < OLDEST:
        raise CheckError(f"older than 6.2: {told}", "upgrade it")
    if found.is_cluster:
        raise CheckError(f"it is a cluster: {told}", "use one server, with copies and Sentinel if it may not be away")
    if found.is_copy:
        raise CheckError(f"it is a copy, which can't be written: {told}", "name the primary with --redis")
    if found.refusal:
        raise CheckError(
            f"{found.refusal}: {told}", "allow its user all commands on toolgate:*, or correct what it names"
        )
    evicts = found.policy not in ("", "noeviction")
    if evicts and found.most_memory:
        raise CheckError(f"it evicts keys when its memory is full: {told}", NOEVICTION)
    notes = [
        (evicts, "it would evict keys with a maxmemory", NOEVICTION),
        (
            found.used_memory > FULL * (found.most_memory or float("inf")),
            "its memory is nearly full",
            "raise maxmemory",
        ),
        (_is_in_the_clear(url), "passwords and messages cross the network in the clear", "rediss:// in --redis"),
        (found.latency > SLOW, "it is slow, and each request of a session asks it", "move it nearer to the servers"),
        (
            bool(found.others),
            f"others use it, too: {_describe_others(found.others)}",
            "nothing, if that is known: each has keys of its own; else correct --redis or --database",
        ),
        (found.saves is True, "it writes its data to disk, which takes time and memory and is not needed", NO_SAVES),
    ]
    finding, remedy = next(((finding, remedy) for applies, finding, remedy in notes if applies), ("", ""))
    return CheckNote(f"{finding}: {told}", remedy) if finding else told


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def _is_in_the_clear(url: "RedisUrl") -> bool:
    host = url.address.rpartition(":")[0]
    return url.secret.startswith("redis:") and not is_loopback(host)


async def _read_clock(config: Config, now: Callable[[], float]) -> tuple[float, float, float]:
    from toolgate.server.features.replicas.redis.description import read_clock  # start-up

    return await read_clock(config.redis, now)
