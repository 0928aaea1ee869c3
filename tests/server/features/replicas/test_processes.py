"""Replicas on a real Redis and PostgreSQL: who lives, and who takes over the work of a dead one."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.server.features.replicas.bus.conftest import shared_redis as shared_redis
from tests.server.features.replicas.bus.conftest import with_prefix
from tests.servers.postgres import Postgres
from tests.servers.redis_server import RedisProcess
from toolgate.server.base.bus.bus import Bus
from toolgate.server.base.bus.settings import BusSettings, LeaseTimes
from toolgate.server.base.errors import StateError
from toolgate.server.features.postgres.database import driver as driver
from toolgate.server.features.postgres.database.replica_lock import ReplicaLock
from toolgate.server.features.postgres.database_url import parse_database_url
from toolgate.server.features.postgres.open_store import open_store
from toolgate.server.features.replicas.open_bus import open_bus
from toolgate.server.features.replicas.processes import ReplicaProcesses
from toolgate.server.state.rows.callback_timer import CallbackTimer, Firing, serves_everyone
from toolgate.server.state.rows.callbacks import CallbackStore
from toolgate.server.state.rows.due_callbacks import DueCallbacks
from toolgate.server.state.rows.tasks import TaskRows
from toolgate.server.state.store import Store

NOW = 1_000_000.0

OWNER = """
import asyncio, sys, time
from pathlib import Path
from tests.server.features.replicas.test_processes import Process

async def main():
    url, database, prefix, folder, is_locked = sys.argv[1:]
    async with Process(url, database, prefix, Path(folder), is_locked=bool(is_locked)) as process:
        await process.callbacks().set("tea", 3, 1)
        await process.rows.add("a task", "ada", 600.0, b"{}")
        print(process.bus.replica.name, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


class Process:
    """The callbacks and tasks of one replica, whose deaths it follows."""

    def __init__(
        self,
        url: str,
        database: str,
        prefix: str,
        folder: Path,
        *,
        is_locked: bool = True,
        mercy: float = LeaseTimes().mercy,
    ) -> None:
        self.url = url
        self.database = parse_database_url(database)
        self.prefix = prefix
        self.folder = folder
        self.is_locked = is_locked
        self.lease = LeaseTimes(mercy=mercy)
        self.fired: list[Firing] = []
        self.adopted: list[str] = []
        self.failures = 0  # of the state that are to come
        self.bus: Bus
        self.store: Store

    async def __aenter__(self) -> "Process":
        self._stack = AsyncExitStack()
        self.bus = await open_bus(self.url, BusSettings(prefix=self.prefix, lease=self.lease))
        self._stack.push_async_callback(self.bus.close)
        self.store = open_store(self.folder, self.database)
        self._stack.push_async_callback(self.store.aclose)
        lock = ReplicaLock(self.bus.replica.name, partial(driver.connect, self.database))
        self.processes = ReplicaProcesses(self.bus.replica, lock if self.is_locked else None)
        self.clock = CallbackTimer(self.store, self.fired.append, processes=self.processes)
        self.rows = TaskRows(self.store, self.processes, time.time, "")
        self._following = asyncio.create_task(self.processes.follow(self._on_death))
        await self.clock.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._following.cancel()
        with suppress(asyncio.CancelledError):
            await self._following
        await self.clock.stop()
        await self._stack.aclose()

    def callbacks(self) -> CallbackStore:
        return CallbackStore(self.store, self.clock, "ada", "")

    async def _on_death(self) -> None:
        if self.failures:
            self.failures -= 1
            raise StateError("the state is away")
        self.clock.wake()
        self.adopted += [task.id for task, _ in await self.rows.adopt(serves_everyone)]


@contextmanager
def owner_process(*words: str) -> Iterator["tuple[subprocess.Popen[bytes], str]"]:
    """Run a replica with a callback that is due in 3 s and a task. Yield its process and its name."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, *words], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    try:
        yield owner, owner.stdout.readline().decode().strip()
    finally:
        owner.kill()
        owner.communicate(timeout=60)


@pytest.mark.parametrize(
    ("number", "is_locked", "within"),
    [
        (signal.SIGKILL, "1", 3.5),
        pytest.param(signal.SIGKILL, "", 5.0, marks=pytest.mark.soak),
        pytest.param(signal.SIGSTOP, "1", 5.0, marks=pytest.mark.soak),
    ],
)
def test_the_work_of_a_dead_replica_is_taken_over_once(
    shared_redis: RedisProcess, postgres: Postgres, tmp_path: Path, number: int, is_locked: str, within: float
) -> None:
    async def body() -> None:
        words = shared_redis.unix_url, postgres.create_database(), with_prefix().prefix
        async with AsyncExitStack() as stack:
            others = [
                await stack.enter_async_context(Process(*words, tmp_path, is_locked=bool(is_locked))) for _ in range(2)
            ]
            owner, name = await asyncio.to_thread(stack.enter_context, owner_process(*words, str(tmp_path), is_locked))
            await _seen(others, name, is_locked)
            os.kill(owner.pid, number)
            began = time.monotonic()
            while not (fired := [each for other in others for each in other.fired]):
                assert time.monotonic() - began < within + 3, "not taken over"
                await asyncio.sleep(0.02)
            assert time.monotonic() - began < within
            await asyncio.sleep(1.2)  # one look of each further
            assert [each.message for each in fired] == ["tea"]
            assert [id for other in others for id in other.adopted] == ["a task"]
            if number == signal.SIGSTOP:  # it wakes up late, and changes nothing
                owner.send_signal(signal.SIGCONT)
                await asyncio.sleep(3.2)
            firings = await others[0].callbacks().list_fired()
            assert [each.message for each in firings] == ["tea"]

    asyncio.run(asyncio.wait_for(body(), 30))


def test_the_work_of_a_dead_replica_waits_for_a_state_that_is_away(
    shared_redis: RedisProcess, postgres: Postgres, tmp_path: Path
) -> None:
    async def body() -> None:
        words = shared_redis.unix_url, postgres.create_database(), with_prefix().prefix
        async with AsyncExitStack() as stack:
            other = await stack.enter_async_context(Process(*words, tmp_path))
            other.failures = 1
            owner, name = await asyncio.to_thread(stack.enter_context, owner_process(*words, str(tmp_path), "1"))
            await _seen([other], name, "1")
            owner.kill()
            while other.adopted != ["a task"]:
                await asyncio.sleep(0.02)
            assert other.failures == 0

    asyncio.run(asyncio.wait_for(body(), 30))


def test_the_work_of_a_replica_that_redis_forgot_is_taken_over_if_it_does_not_return(
    shared_redis: RedisProcess, postgres: Postgres, tmp_path: Path
) -> None:
    """While it may still return, the look at the start finds it alive. No look at Redis shows its name."""

    async def body() -> None:
        url, database = shared_redis.unix_url, postgres.create_database()
        words = url, database, with_prefix().prefix, str(tmp_path), "1"
        with owner_process(*words) as (owner, _):
            owner.kill()
        async with Process(url, database, with_prefix().prefix, tmp_path, mercy=1.5) as other:
            assert await other.rows.adopt(serves_everyone) == []
            while other.adopted != ["a task"]:
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(body(), 30))


async def _seen(others: list[Process], name: str, is_locked: str) -> None:
    """Wait until the others have seen the owner's lease, and its lock."""
    for other in others:
        while name not in await other.bus.replica.list_names():
            await asyncio.sleep(0.02)
    await asyncio.sleep(1.2 if is_locked else 0)  # a look


def test_a_living_replica_is_not_found_dead_without_its_lock(
    shared_redis: RedisProcess, postgres: Postgres, tmp_path: Path
) -> None:
    async def body() -> None:
        words = shared_redis.unix_url, postgres.create_database(), with_prefix().prefix, tmp_path
        async with Process(*words) as one, Process(*words) as two:
            name = two.bus.replica.name
            await _seen([one], name, "1")
            locks = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'toolgate replica'"
            await asyncio.to_thread(postgres.run_sql, locks)
            assert await one.processes.find_dead([name]) == frozenset()
            assert await one.bus.replica.is_alive(name)

    asyncio.run(asyncio.wait_for(body(), 30))


Trial = Callable[[int, list[Process]], Awaitable[None]]


@pytest.fixture(params=[20, pytest.param(200, marks=pytest.mark.soak)])
def race(
    request: pytest.FixtureRequest, shared_redis: RedisProcess, postgres: Postgres, tmp_path: Path
) -> Callable[[Trial], None]:
    """Run `await trial(number, replicas)` many times with two replicas."""

    def run(trial: Trial) -> None:
        async def body() -> None:
            words = shared_redis.unix_url, postgres.create_database(), with_prefix().prefix, tmp_path
            async with Process(*words) as one, Process(*words) as two:
                for number in range(request.param):
                    await asyncio.wait_for(trial(number, [one, two]), 20)

        asyncio.run(body())

    return run


def test_two_replicas_claim_a_callback_once(race: Callable[[Trial], None]) -> None:
    async def trial(number: int, replicas: list[Process]) -> None:
        await _set_process(replicas[0], "an old process")
        claims = (
            DueCallbacks(each.store, each.processes, serves_everyone, lambda: NOW + 60).claim() for each in replicas
        )
        assert sum(len(firings) for firings, _ in await asyncio.gather(*claims)) == 1

    race(trial)


async def _set_process(owner: Process, process: str) -> None:
    """Set a callback that is due, of a replica that is dead."""
    from toolgate.server.state import tables

    row: dict[str, Any] = {"principal": "ada", "slot": 0, "message": "tea", "delay": 10, "left": 1, "session": ""}
    statement = tables.callback.insert().values(row | {"next_at": NOW, "process": process})
    await owner.store.transact(lambda connection: connection.execute(statement), alone="callbacks")


def test_two_replicas_adopt_a_task_once(race: Callable[[Trial], None]) -> None:
    class Dead(ReplicaProcesses):
        def own_name(self) -> str:
            return "an old process"

    async def trial(number: int, replicas: list[Process]) -> None:
        first = replicas[0]
        await TaskRows(first.store, Dead(first.bus.replica), time.time, "").add(f"task {number}", "ada", 60.0, b"{}")
        adopted = await asyncio.gather(*(each.rows.adopt(serves_everyone) for each in replicas))
        assert sum(map(len, adopted)) == 1
        await first.rows.remove(f"task {number}")

    race(trial)
