"""Three people work at two nodes while one node stops, dies and starts again: calls end in time, nothing is lost."""

import asyncio
import random
import signal
import time
from pathlib import Path

import pytest

from tests.server.features.nodes.nodes import NodeProcess, fake_principal
from tests.server.features.nodes.several_nodes import database, place_at, several_gateway
from tests.tools.shell_commands import BOUND, living, until
from toolgate.server.features.nodes.gateway.remote_workspaces import RemoteWorkspaces
from toolgate.server.state.store import Store
from toolgate.tools.api.errors import ToolError

WITHIN = 2.0  # seconds: what is promised of a call while its node can't be reached
MARGIN = 0.3  # seconds for a busy machine
ROUNDS = 4
KNOWN = ("nothing was done", "it is not known how far this came", "nothing more is started", "was not started")


class Person:
    """Somebody who starts commands one after the other, some of which go on for long."""

    def __init__(self, remote: RemoteWorkspaces, dice: random.Random) -> None:
        self.principal = fake_principal()
        self.word = f"toolgate-test-{self.principal}"
        self.times = list[float]()
        self.faults = list[str]()
        self._remote = remote
        self._dice = dice

    async def work(self, is_over: asyncio.Event) -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            began = time.monotonic()
            try:
                await self._call(number)
            except ToolError as error:
                self.faults.append(str(error))
            self.times.append(time.monotonic() - began)
            await asyncio.sleep(0.02)

    async def _call(self, number: int) -> None:
        mine = self._remote.get_or_open(self.principal)
        sleep = f"exec -a {self.word} sleep 500"
        choice = self._dice.randrange(16)
        if choice == 0 and len(living(self.word)) < 5:
            await mine.start(sleep, background=True)
        elif choice == 1 and len(living(self.word)) < 5:  # it outlasts its call, and goes on
            run_id, conclusion = await mine.execute(f"(setsid bash -c '{sleep}' &); {sleep}", wait=0.2, limit=100)
            assert conclusion is None
            await mine.conclude(run_id, limit=100)
        else:
            _, conclusion = await mine.execute(f"echo {number}", wait=BOUND, limit=100)
            assert conclusion is not None and conclusion.excerpt.text == f"{number}\n"

    async def list_running(self) -> int:
        """Return how many processes the listed tasks have, once they have all been started."""
        tasks = await self._remote.get_or_open(self.principal).list()
        return sum(task.command.count(self.word) for task in tasks if task.status == "running")


def disturb(node: NodeProcess, way: str) -> None:
    """Do to the node what may happen to it, for a second or two."""
    if way == "stop":
        node.process.send_signal(signal.SIGSTOP)
        time.sleep(2.5)
        node.process.send_signal(signal.SIGCONT)
        return
    node.kill() if way == "kill" else node.stop()
    time.sleep(0.5)
    node.start()


@pytest.mark.soak
@pytest.mark.parametrize("way", ["stop", "kill", "restart"])
def test_under_load_each_call_ends_in_time_and_all_that_runs_is_listed(
    nodes: list[NodeProcess], tmp_path: Path, way: str
) -> None:
    dice = random.Random(way)

    async def body(store: Store) -> None:
        async with several_gateway(store, *nodes) as remote:
            people = [Person(remote, dice) for _ in range(3)]
            for person, name in zip(people, ("attic", "attic", "cellar"), strict=True):
                await place_at(store, person.principal, name)
                await remote.prepare(person.principal, lambda _, text: None)
            is_over = asyncio.Event()
            work = [asyncio.ensure_future(person.work(is_over)) for person in people]
            for _ in range(ROUNDS):
                await asyncio.sleep(dice.random() * 2)
                await asyncio.to_thread(disturb, nodes[0], way)
            await asyncio.sleep(1.5)
            is_over.set()
            await asyncio.gather(*work)
            near, far = people[:2], people[2]
            assert far.faults == [] and max(far.times) < 1.0
            assert all(person.faults for person in near)
            faults = {fault for person in near for fault in person.faults}
            assert [fault for fault in faults if not any(known in fault for known in KNOWN)] == []
            assert max(max(person.times) for person in near) < WITHIN + MARGIN
            for person in people:
                async with asyncio.timeout(BOUND):
                    while len(living(person.word)) != await person.list_running():
                        await asyncio.sleep(0.1)
                for task in await remote.get_or_open(person.principal).list():
                    await remote.get_or_open(person.principal).kill(task.id)
                await until(lambda person=person: not living(person.word))  # type: ignore[misc]

    with database(tmp_path) as store:
        asyncio.run(body(store))
