"""The last calls at two replicas: a page at either shows both, and nothing is sent while no page is open."""

import asyncio
from collections.abc import Callable

from tests.server.features.replicas.bus.conftest import eventually
from tests.server.features.replicas.bus.conftest import shared_redis as shared_redis
from tests.server.features.replicas.bus.pairs import run_replicas as run_replicas
from toolgate.server.base.bus.bus import Bus
from toolgate.server.base.task import StoredTask
from toolgate.server.calls.recent_calls import RecentCalls
from toolgate.server.features.replicas.services.recent_calls import CALLS, OPEN, SIGN, SharedCalls

Run = Callable[..., None]


def task(id: str, began: float) -> StoredTask:
    return StoredTask(f"{id}.{id}", "ada", "", "failed", None, began, began, began + 60)


def test_a_page_shows_the_calls_of_all_replicas(run_replicas: Run) -> None:
    async def check(one: Bus, two: Bus) -> None:
        local, remote = RecentCalls(), RecentCalls()
        here, there = SharedCalls(one, local), SharedCalls(two, remote)
        sent: list[bytes] = []
        for topic in (OPEN, CALLS):
            await one.topics.subscribe(topic, lambda _: None, lambda: None).confirm()
            await two.topics.subscribe(topic, sent.append, lambda: None).confirm()
        remote.task_lost(task("first", 1))
        local.task_lost(task("second", 2))
        await asyncio.sleep(0.1)
        assert sent == []
        changes: list[None] = []
        leave = here.watch("ada", lambda: changes.append(None))

        def shown() -> list[tuple[str, str]]:
            return [(call.tool, call.outcome) for call in here.newest("ada")]

        async def has_all(*tools: str) -> bool:
            return shown() == [(tool, "fault") for tool in tools]

        await eventually(lambda: has_all("second", "first"), 3 * SIGN)  # a sign may be lost: the next one shows it
        changes.clear()
        remote.task_lost(task("third", 3))
        await eventually(lambda: has_all("third", "second", "first"), 3 * SIGN)
        assert changes
        assert [call.tool for call in there.newest("ada")] == ["third", "first"]
        leave()
        assert await has_all("second")

    run_replicas(check)
