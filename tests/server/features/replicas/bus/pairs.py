"""Run a check with the buses of two replicas: one bus in memory twice, or two on one Redis."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.server.features.replicas.bus.conftest import LONGEST, with_prefix
from toolgate.server.base.bus.bus import Bus
from toolgate.server.features.replicas.open_bus import open_bus

Check = Callable[[Bus, Bus], Awaitable[None]]


@pytest.fixture(params=["memory", "redis"])
def run_pair(request: pytest.FixtureRequest) -> Callable[[Check], None]:
    """Run `check(one, two)` on each kind of bus."""
    url = request.getfixturevalue("shared_redis").unix_url if request.param == "redis" else None
    return lambda check: asyncio.run(_use_pair(url, check))


@pytest.fixture
def run_replicas(request: pytest.FixtureRequest) -> Callable[[Check], None]:
    """Run `check(one, two)` with two buses on Redis."""
    url = request.getfixturevalue("shared_redis").unix_url
    return lambda check: asyncio.run(_use_pair(url, check))


async def _use_pair(url: str | None, check: Check) -> None:
    settings = with_prefix()
    async with asyncio.timeout(LONGEST):
        one = await open_bus(url, settings)
        two = one if url is None else await open_bus(url, settings)
        try:
            await check(one, two)
        finally:
            await one.close()
            if two is not one:
                await two.close()
