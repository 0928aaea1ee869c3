"""Tasks at two replicas on one Redis and one state: answers and cancellations by mail, changes by a topic."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE
from tests.server.features.replicas.bus.conftest import shared_redis as shared_redis
from tests.server.features.replicas.bus.pairs import run_replicas as run_replicas
from toolgate.server.base.bus.bus import Bus
from toolgate.server.base.task import StoredTask
from toolgate.server.calls.task_requests import TaskRequest, carry_out
from toolgate.server.calls.tasks import CallTask, CallTasks
from toolgate.server.features.replicas.processes import ReplicaProcesses
from toolgate.server.features.replicas.services.remote_tasks import RemoteTasks
from toolgate.server.protocol.errors import InvalidParams
from toolgate.server.protocol.notifications import Notifications, OpenSubscription
from toolgate.server.state.sqlite.store import SqliteStore

Run = Callable[..., None]
QUESTION = {"method": "elicitation/create", "params": {}}
ANSWER = {"action": "accept", "content": {}}


class Replica:
    """The tasks of one replica. `sent` is what a client got that subscribes to a task here."""

    def __init__(self, bus: Bus, folder: Path) -> None:
        self.bus = bus
        self.store = SqliteStore(folder)
        self.tasks = CallTasks(self.store, ReplicaProcesses(bus.replica), notify=lambda kept: self.remote.notify(kept))
        self.notifications = Notifications()
        self.remote = RemoteTasks(bus, self.tasks, self.notifications)
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def subscribe(self, id: str) -> None:
        ended = asyncio.get_running_loop().create_future()
        listener = OpenSubscription(1, self, "ada", "ada", frozenset(), frozenset((id,)), ended)  # type: ignore[arg-type]  # a channel
        self.notifications.subscriptions[listener] = None

    def send(self, message: Any) -> None:
        self.sent.put_nowait(message.params)


@asynccontextmanager
async def replicas(one: Bus, two: Bus, folder: Path) -> AsyncIterator[tuple[Replica, Replica, CallTask]]:
    """Yield two replicas, and a task that runs at the first."""
    first, second = Replica(one, folder), Replica(two, folder)
    task = await first.tasks.begin("ada", "echo", None)
    task.attach_work(asyncio.get_running_loop().create_task(asyncio.sleep(60)))
    try:
        yield first, second, task
    finally:
        for each in (first, second):
            await each.tasks.close(0)
            await each.store.aclose()


async def find_asking(replica: Replica, task: CallTask) -> StoredTask:
    """Return what a replica finds of a task, once its question is written, which the task does not wait for."""
    async with asyncio.timeout(PATIENCE):
        while (found := (await replica.tasks.find("ada", [task.kept.id]))[task.kept.id]).status != "input_required":
            await asyncio.sleep(0.01)
    return found


def test_an_answer_at_another_replica_reaches_the_task(run_replicas: Run, tmp_path: Path) -> None:
    async def check(one: Bus, two: Bus) -> None:
        async with replicas(one, two, tmp_path) as (first, second, task):
            asking = asyncio.create_task(task.ask({"name": QUESTION}, 20))
            kept = await find_asking(second, task)
            assert kept.process == first.bus.replica.name
            wrong = TaskRequest("ada", kept.id, {"name": {"action": "perhaps"}})
            with pytest.raises(InvalidParams, match="no shape known"):
                await second.remote.send(kept.process, wrong)
            assert not await second.remote.send(kept.process, TaskRequest("bob", kept.id, {"name": ANSWER}))
            began = time.perf_counter()
            assert await second.remote.send(kept.process, TaskRequest("ada", kept.id, {"name": ANSWER}))
            assert await asking == {"name": ANSWER}
            assert time.perf_counter() - began < 10  # half of what it waits for

    run_replicas(check)


def test_a_question_is_closed_for_all_replicas_once_its_answer_is_acknowledged(
    run_replicas: Run, tmp_path: Path
) -> None:
    async def check(one: Bus, two: Bus) -> None:
        async with replicas(one, two, tmp_path) as (first, second, task):
            asking = asyncio.create_task(task.ask({"name": QUESTION, "place": QUESTION}, 20))
            kept = await find_asking(second, task)
            await carry_out(first.tasks, task, TaskRequest("ada", kept.id, {"name": ANSWER}))
            found = (await second.tasks.find("ada", [kept.id]))[kept.id]
            assert (found.status, json.loads(found.questions or b"{}")) == ("input_required", {"place": QUESTION})
            await carry_out(first.tasks, task, TaskRequest("ada", kept.id, {"place": ANSWER}))
            assert (await second.tasks.find("ada", [kept.id]))[kept.id].status == "working"
            assert await asking == {"name": ANSWER, "place": ANSWER}

    run_replicas(check)


def test_a_cancellation_at_another_replica_ends_the_work(run_replicas: Run, tmp_path: Path) -> None:
    async def check(one: Bus, two: Bus) -> None:
        async with replicas(one, two, tmp_path) as (_, second, task):
            assert await second.remote.send(task.kept.process, TaskRequest("ada", task.kept.id))
            assert task.work is not None and task.work.cancelling()
            found = await second.tasks.find("ada", [task.kept.id])
            assert found[task.kept.id].status == "cancelled"
            assert not await second.remote.send(task.kept.process, TaskRequest("ada", "another"))
            assert not await second.remote.send("00000000", TaskRequest("ada", task.kept.id))

    run_replicas(check)


def test_a_subscription_at_another_replica_is_notified(run_replicas: Run, tmp_path: Path) -> None:
    async def check(one: Bus, two: Bus) -> None:
        async with replicas(one, two, tmp_path) as (_, second, task):
            second.subscribe(task.kept.id)
            await two.topics.subscribe("tasks", lambda _: None, lambda: None).confirm()
            task.progress("half")
            assert (await asyncio.wait_for(second.sent.get(), 5))["statusMessage"] == "half"
            await task.end("completed", None, b'{"content":[]}')
            ended = await asyncio.wait_for(second.sent.get(), 5)
            assert ended["status"] == "completed" and bytes(ended["result"]) == b'{"content":[]}'

    run_replicas(check)


def test_a_task_that_another_replica_has_adopted_is_given_up(run_replicas: Run, tmp_path: Path) -> None:
    async def check(one: Bus, two: Bus) -> None:
        async with replicas(one, two, tmp_path) as (first, second, task):
            from toolgate.server.state import tables

            change = tables.deferral.update().values(process=two.replica.name)
            await second.store.transact(lambda connection: connection.execute(change), alone="tasks")
            await task.end("completed", None, b"{}")
            assert first.tasks.find_running("ada", task.kept.id) is None
            assert (await second.tasks.find("ada", [task.kept.id]))[task.kept.id].status == "working"

    run_replicas(check)
