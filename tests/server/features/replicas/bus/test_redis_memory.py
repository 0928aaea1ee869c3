"""What sessions cost in Redis, as it measures itself."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from tests.server.features.replicas.bus.conftest import LONGEST, STEADY, eventually, use_bus, with_prefix
from tests.servers.redis_server import RedisProcess
from toolgate.server.base.bus.bus import Bus
from toolgate.server.base.bus.settings import BusSettings, StreamLimits

RECORD = {  # as large as a session's record is
    "principal": "https://accounts.example.com ada@example.com",
    "client": "claude-desktop 1.2.3",
    "grants": ["0123456789abcdef0123456789abcdef"],
    "revision": "2025-11-25",
    "capabilities": {"elicitation": {"form": {}, "url": {}}, "roots": {"listChanged": True}, "sampling": {"tools": {}}},
    "scopes": ["files:read", "files:write", "shell", "web", "tasks"],
    "ready": True,
    "level": "info",
    "folder": "projects/a-project-of-ada",
    "plan": False,
    "subscriptions": ["file:///projects/a-project-of-ada/README.md"],
}


def run(server: RedisProcess, check: Callable[[Bus, str], Awaitable[None]], limits: StreamLimits | None = None) -> None:
    settings = with_prefix(BusSettings(command=LONGEST, streams=limits or StreamLimits(), lease=STEADY))
    asyncio.run(use_bus(server.unix_url, lambda bus: check(bus, settings.prefix), settings))


def size(server: RedisProcess, key: str) -> int:
    return int(server.run("MEMORY", "USAGE", key, "SAMPLES", "0").strip(b":\r\n"))


def test_a_record_of_a_session_takes_at_most_a_kilobyte(shared_redis: RedisProcess) -> None:
    async def check(bus: Bus, prefix: str) -> None:
        key = "session 0123456789abcdef0123456789abcdef"
        await bus.keys.set(key, msgspec.msgpack.encode(RECORD), 1_800)
        assert size(shared_redis, f"{prefix}key:{key}") <= 1_024

    run(shared_redis, check)


def test_a_further_entry_of_a_stream_takes_its_data_and_some_fifty_bytes(shared_redis: RedisProcess) -> None:
    async def check(bus: Bus, prefix: str) -> None:
        def add(first: int, last: int) -> None:
            for number in range(first, last + 1):
                stream = f"0123abcd.{number % 4}.IjEyMyI.0123456789"
                bus.streams.append("session", stream, number, bytes(200))

        add(1, 1)
        await bus.streams.flush()
        one = size(shared_redis, f"{prefix}stream:session")
        add(2, 1_001)
        await bus.streams.flush()
        each = (size(shared_redis, f"{prefix}stream:session") - one) / 1_000
        assert one < 5_000 and each < 300
        print(f"{one} bytes with one entry, {each:.0f} each further")

    run(shared_redis, check)


def test_a_stream_that_is_full_takes_no_more(shared_redis: RedisProcess) -> None:
    async def check(bus: Bus, prefix: str) -> None:
        for number in range(1, 5_001):
            bus.streams.append("session", "s", number, bytes(1_000))
            if number % 50 == 0:
                await bus.streams.flush()
        assert size(shared_redis, f"{prefix}stream:session") < 200_000

    run(shared_redis, check, StreamLimits(entries=1_000, size=100_000))


def test_names_that_clients_invent_take_bounded_room(shared_redis: RedisProcess) -> None:
    async def check(bus: Bus, prefix: str) -> None:
        async def is_dead() -> bool:
            return not await bus.replica.is_alive("f" * 8)

        await eventually(is_dead)  # the mercy of the first lease is over
        for first in range(0, 12_000, 1_000):
            names = [f"{number:08x}" for number in range(first, first + 1_000)]
            assert not any(await asyncio.gather(*(bus.replica.is_alive(name) for name in names)))
        assert await bus.replica.is_alive(bus.replica.name)
        assert shared_redis.run("ZCARD", f"{prefix}replicas") == b":10000\r\n"

    run(shared_redis, check)
