"""Run a test on a bus in memory, and on one of Redis."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator

import pytest
import uvloop
from msgspec.structs import replace

from tests.clients.raw_client import PATIENCE
from tests.servers.redis_server import RedisProcess, redis_server
from toolgate.server.base.bus.bus import Bus
from toolgate.server.base.bus.settings import BusSettings, LeaseTimes
from toolgate.server.features.replicas.open_bus import open_bus

LONGEST = 120.0  # seconds of one test: test machines are slow at times

# A busy machine renews late, which may pass for an absence of Redis: then no replica would be found dead.
STEADY = LeaseTimes(lease=LONGEST, pause=LONGEST, mercy=0.001)

Check = Callable[[Bus], Awaitable[None]]


@pytest.fixture(scope="module")
def shared_redis() -> Iterator[RedisProcess]:
    """A server for tests that do not disturb it: each has keys with a prefix of its own."""
    with redis_server() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[RedisProcess]:
    with redis_server() as server:
        yield server


@pytest.fixture(params=["memory", "redis", "redis on uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Run `check(bus)` with a new bus of each kind: `run(check, settings)`."""
    url = request.getfixturevalue("shared_redis").unix_url if request.param != "memory" else None
    loop = uvloop.run if "uvloop" in request.param else asyncio.run  # servers over HTTP run on uvloop

    def begin(check: Check, settings: BusSettings | None = None) -> None:
        loop(use_bus(url, check, with_prefix(settings)))

    return begin


def with_prefix(settings: BusSettings | None = None) -> BusSettings:
    """Return settings whose keys no other test has."""
    return replace(settings or BusSettings(), prefix=f"test-{secrets.token_hex(4)}:")


async def use_bus(url: str | None, check: Check, settings: BusSettings) -> None:
    async with asyncio.timeout(LONGEST):
        bus = await open_bus(url, settings)
        try:
            await check(bus)
        finally:
            await bus.close()


async def eventually(condition: Callable[[], Awaitable[bool]], seconds: float = PATIENCE) -> None:
    """Wait until `condition` holds. Fail after so many seconds."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.01)
