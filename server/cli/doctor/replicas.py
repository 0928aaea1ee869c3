"""Check what several servers share: the secret, Redis, and the clocks of all machines."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING

from toolgate.server.base.text import format_size
from toolgate.server.cli.doctor.report import CheckError, CheckFinding, CheckNote, CheckRow, CheckSkippedError
from toolgate.server.cli.terminal.output import format_count
from toolgate.server.config.load import Config
from toolgate.server.config.types import is_loopback
from toolgate.server.protocol.errors import UsageError
from toolgate.tools.installation import name_extra

if TYPE_CHECKING:
    from toolgate.server.base.bus.redis.description import RedisDescription
    from toolgate.server.base.bus.redis_url import RedisUrl

OLDEST = (6, 2)  # of Redis: the first with GETDEL
MOST_OFF = 1.0  # seconds that clocks may differ
SLOW = 0.01  # seconds: each request of a session asks Redis once
FULL = 0.8  # of Redis' memory
NODE_TIMEOUT = 3.0  # seconds
NOEVICTION = "maxmemory-policy noeviction, in its configuration and by CONFIG SET: an evicted key ends its session"
NO_SAVES = 'save "" and appendonly no in its configuration: clients initialize again after a loss'

Reading = Callable[[], Awaitable[tuple[float, float, float]]]  # a clock, between two times of this machine


def replica_checks(config: Config) -> list[CheckRow]:
    """Return the checks that --database, --secret, --redis and --node ask for."""
    checks: list[CheckRow] = []
    if config.database is not None or config.secret is not None:
        checks.append(("secret", partial(secret, config), ("state database",) if config.database else ()))
    if config.redis is not None:
        checks.append(("Redis", partial(redis, config), ()))
    if config.database is not None or config.redis is not None or config.node:
        checks.append(("other clocks", partial(clocks, config), ()))
    return checks


async def secret(config: Config) -> CheckFinding:
    """Check that --secret opens the keys in PostgreSQL."""
    from toolgate.server.app.features import open_store
    from toolgate.server.config.secret_file import read_secret  # start-up
    from toolgate.server.state.errors import StateError
    from toolgate.server.state.keys.sealing_keys import SEALED, has_keys
    from toolgate.server.state.keys.table import KeyTable

    try:
        key = read_secret(config)
    except UsageError as error:
        raise CheckError(str(error), "correct it: the server refuses to start with it") from None
    async with aclosing(open_store(config, upgrades=False)) as store:
        try:
            is_sealed = await store.read(has_keys)
        except StateError as error:  # there are no tables of this version
            raise CheckSkippedError(str(error)) from None
        if key is not None and is_sealed:
            try:
                return f"it opens {format_count(len(await store.read(KeyTable(store, key).to_files)), 'key')}"
            except StateError as error:
                raise CheckError(str(error), "correct --secret") from None
    if key is not None:
        return "the first start seals keys with it"
    if is_sealed:
        raise CheckError(SEALED, "name its file with --secret")
    if config.redis is None:
        raise CheckSkippedError("without --secret, the keys are in the state folder")
    return CheckNote(
        "without --secret, each server has keys of its own: a token of one is refused by the others",
        "--secret FILE, the same for all servers",
    )


async def redis(config: Config) -> CheckFinding:
    """Check that Redis is reached, suits and has room."""
    from toolgate.server.base.bus.bus import BusUnreachableError  # start-up

    try:
        from toolgate.server.base.bus.redis.description import describe_redis  # start-up

        return judge_redis(config.redis, await describe_redis(config.redis, await _read_deployment(config)))
    except ModuleNotFoundError:
        raise CheckError("a package is missing", name_extra("replicas")) from None
    except (BusUnreachableError, ValueError) as error:
        raise CheckError(str(error), "start it, or correct --redis") from None


async def _read_deployment(config: Config) -> str | None:
    """Return the id of the servers on this database, or None. The check of the database says why it can't be read."""
    if config.database is None:
        return None
    from toolgate.server.app.features import open_store
    from toolgate.server.state.deployment import read_deployment  # start-up
    from toolgate.server.state.errors import StateError

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


async def clocks(config: Config, now: Callable[[], float] = time.time) -> CheckFinding:
    """Compare this machine's clock with those of PostgreSQL, Redis and the nodes."""
    readings = _list_readings(config, now)
    answers = await asyncio.gather(*(_read(reading) for reading in readings.values()))
    differences = {name: answer for name, answer in zip(readings, answers, strict=True) if answer is not None}
    if not differences:
        raise CheckSkippedError("none of the others answers")
    off = [_describe_difference(name, by) for name, by in differences.items() if abs(by) > MOST_OFF]
    if off:
        return CheckNote("; ".join(off), "set the clocks by NTP: tokens, sign-ins and callbacks go by them")
    return f"{', '.join(differences)}: within a second of this machine's"


def _list_readings(config: Config, now: Callable[[], float]) -> dict[str, Reading]:
    readings: dict[str, Reading] = {}
    if config.database is not None:
        readings["PostgreSQL"] = partial(_read_database_clock, config, now)
    if config.redis is not None:
        readings["Redis"] = partial(_read_redis_clock, config, now)
    for place, address in enumerate(config.node):
        readings[f"the node at {address}"] = partial(_read_node_clock, config, place, now)
    return readings


async def _read(reading: Reading) -> float | None:
    """Return by how many seconds a clock is ahead of this machine's, or None. The other checks say why."""
    try:
        before, clock, after = await reading()
    except Exception:  # noqa: BLE001  # as above
        return None
    return min(clock - before, 0.0) + max(clock - after, 0.0) if clock else None


async def _read_database_clock(config: Config, now: Callable[[], float]) -> tuple[float, float, float]:
    from toolgate.server.state.postgres_description import read_clock  # start-up, and it imports asyncpg

    return await read_clock(config.database, now)


async def _read_redis_clock(config: Config, now: Callable[[], float]) -> tuple[float, float, float]:
    from toolgate.server.base.bus.redis.description import read_clock  # start-up

    return await read_clock(config.redis, now)


async def _read_node_clock(config: Config, place: int, now: Callable[[], float]) -> tuple[float, float, float]:
    from toolgate.server.node import connect  # start-up
    from toolgate.server.node.gateway import link

    certificate = connect.read_certificate(config, "--node", *config.node)
    before = now()
    welcome = await asyncio.to_thread(link.greet, config.node[place], NODE_TIMEOUT, certificate)
    return before, welcome.clock, now()


def _describe_difference(name: str, seconds: float) -> str:
    return f"{name} is {abs(seconds):,.1f} s {'ahead of' if seconds > 0 else 'behind'} this machine"
