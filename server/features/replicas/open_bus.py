"""Create the bus of a server: in memory, or on Redis if it has a URL."""

from collections.abc import Callable

from toolgate.server.base.bus.bus import Bus
from toolgate.server.base.bus.memory_bus import MemoryBus
from toolgate.server.base.bus.settings import BusSettings
from toolgate.server.features.replicas.redis_url import RedisUrl, parse_redis_url


def create_bus(
    url: RedisUrl | None = None,
    settings: BusSettings | None = None,
    on_lost: Callable[[], None] = lambda: None,
) -> Bus:
    """Return a bus that has not started. With a URL it connects to Redis, and goes on trying if that is away:
    `Bus.health` shows it. It needs a running event loop.

    `on_lost` is called when another replica has found this process dead: it must end, and change nothing any more.
    Raises ValueError for an invalid URL, without its secrets, and ModuleNotFoundError without the extra `replicas`.
    """
    if url is None:
        return MemoryBus(settings or BusSettings())
    try:
        from toolgate.server.features.replicas.redis.redis_bus import RedisBus  # takes 0.4 s, and only replicas need it
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "redis":
            raise
        from toolgate.tools.api.installation import name_extra  # start-up: seldom needed

        raise ModuleNotFoundError(f"it needs a package: {name_extra('replicas')}", name="redis") from None
    return RedisBus(url, settings or BusSettings(), on_lost)


async def open_bus(
    url: str | None = None,
    settings: BusSettings | None = None,
    on_lost: Callable[[], None] = lambda: None,
) -> Bus:
    """Return a bus that has started: see `create_bus`. Raises ValueError and ModuleNotFoundError."""
    try:
        parsed = None if url is None else parse_redis_url(url)
    except ValueError as error:
        raise ValueError(f"the URL of Redis {error}") from None
    bus = create_bus(parsed, settings, on_lost)
    try:
        await bus.start()
    except BaseException:  # cancelled
        await bus.close()
        raise
    return bus
