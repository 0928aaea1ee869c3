"""Measure what operations of the bus cost: `python -m tests.bench.bus`.

Time is in microseconds, of a caller that does nothing else; processor time is this process's, without Redis.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from tests.servers.redis_server import redis_server
from toolgate.server.base.bus.bus import Bus, KeyLimit
from toolgate.server.features.replicas.open_bus import open_bus

RECORD = bytes(600)
EVENT = bytes(200)
TIMES = 2_000


async def measure(name: str, work: Callable[[], Awaitable[object]], each: int = 1) -> None:
    for _ in range(TIMES // 10):
        await work()
    best = (float("inf"), float("inf"))
    for _ in range(5):
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(TIMES // each):
            await work()
        count = TIMES // each * each
        best = min(best, ((time.perf_counter() - began) / count * 1e6, (time.process_time() - cpu) / count * 1e6))
    print(f"{name:44} {best[0]:8.1f} us {best[1]:8.1f} us of processor")


async def measure_bus(kind: str, bus: Bus) -> None:
    number = 0

    async def append() -> None:
        nonlocal number
        number += 1
        bus.streams.append("session", "a-stream-of-25-characters", number, EVENT)

    async def append_and_turn() -> None:
        await append()
        await asyncio.sleep(0)

    async def append_many() -> None:
        for _ in range(100):
            await append()
        await bus.streams.flush()

    async def read_record() -> object:
        return await bus.keys.get_many(("session", "plan", "notices"), touch={"session": 1_800})

    async def read_records() -> object:
        return await asyncio.gather(*(read_record() for _ in range(16)))

    await bus.keys.set("session", RECORD, 1_800)
    await measure(f"{kind}: get", lambda: bus.keys.get("session"))
    await measure(f"{kind}: record, two more keys and a touch", read_record)
    await measure(f"{kind}: the same, 16 at once", read_records, each=16)
    await measure(
        f"{kind}: count against two limits",
        lambda: bus.keys.count((KeyLimit("calls", 10**9, 60), KeyLimit("scope", 10**9, 60))),
    )
    await measure(f"{kind}: append, flushed each 100", append_many, each=100)
    await measure(f"{kind}: append, one a turn", append_and_turn)
    await bus.streams.flush()

    async def publish() -> None:
        bus.topics.publish("list", b"tools")
        await asyncio.sleep(0)

    await measure(f"{kind}: publish, one a turn", publish)
    await bus.streams.flush()

    async def echo(data: bytes) -> bytes:
        return data

    bus.mail.receive("echo", echo)
    await measure(f"{kind}: mail to itself", lambda: bus.mail.send(bus.replica.name, "echo", b"x"))


async def measure_two(url: str) -> None:
    first, second = await open_bus(url), await open_bus(url)

    async def echo(data: bytes) -> bytes:
        return data

    second.mail.receive("echo", echo)
    await measure(
        "redis: mail to another and its reply, one process", lambda: first.mail.send(second.replica.name, "echo", b"x")
    )
    await first.close()
    await second.close()


async def measure_kind(kind: str, url: str | None) -> None:
    bus = await open_bus(url)
    await measure_bus(kind, bus)
    await bus.close()


def main() -> None:
    asyncio.run(measure_kind("memory", None))
    with redis_server() as server:
        asyncio.run(measure_kind("redis", server.unix_url))
        asyncio.run(measure_kind("redis over TCP", server.url))
        asyncio.run(measure_two(server.unix_url))
        import uvloop

        uvloop.run(measure_kind("redis, uvloop", server.url))


if __name__ == "__main__":
    main()
