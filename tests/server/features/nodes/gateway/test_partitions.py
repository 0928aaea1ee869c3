"""A node behind a wire that drops packets: calls end in time, and afterwards everything that runs is listed."""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.server.features.nodes.networks import NODE, Wire, in_thread, join_network, wire
from tests.server.features.nodes.nodes import NodeProcess, fake_principal, gateway, remote_caller, running_node
from tests.tools.shell_commands import BOUND, Caller, living, text_of
from toolgate.tools.api.errors import ToolError

WITHIN = 2.0  # seconds: what is promised of a call while the node can't be reached
BUSY = 2  # times as long may pass on a machine with other work: less than the 6 seconds until a link counts as lost
CALLS = 0.1  # seconds that a call of the load takes

NOTICED = 15.0  # seconds: 6 until the node knows, 3 in which the gateway may come back, and a slow machine

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes networks"),
    pytest.mark.programs("ip", "unshare"),
]

CUTS: dict[str, Callable[[Wire], None]] = {
    "to the node": lambda wire: wire.drop(to_node=True),
    "to the gateway": lambda wire: wire.drop(to_gateway=True),
    "both ways": lambda wire: wire.drop(to_node=True, to_gateway=True),
    "unplugged": lambda wire: wire.unplug(),
}


class Person:
    """Somebody who calls all the time. `texts` are the errors, `longest` is the longest call in seconds."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.texts: list[str] = []
        self.longest = 0.0
        self.done = 0
        self.is_over = False

    async def work(self) -> None:
        while not self.is_over:
            began = time.monotonic()
            output = await self.caller.bash(f"echo {self.done}; sleep {CALLS}")
            self.longest = max(self.longest, time.monotonic() - began)
            if output.is_error:
                self.texts.append(text_of(output))
            else:
                self.done += 1


async def cut_and_heal(node: NodeProcess, wire: Wire, cut: Callable[[Wire], None], seconds: float) -> None:
    async with AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(remote_caller(node)) for _ in range(3)]
        people = [Person(caller) for caller in callers]
        load = [asyncio.ensure_future(person.work()) for person in people]
        word = f"toolgate-test-{fake_principal()}"
        held = [asyncio.ensure_future(each.bash(f"exec -a {word} sleep 500")) for each in callers]
        await asyncio.sleep(0.5)
        assert len(living(word)) == 3
        cut(wire)
        began = time.monotonic()
        for output in await asyncio.gather(*held):
            assert "it is not known how far this came; nothing was run elsewhere" in text_of(output)
        assert time.monotonic() - began < BUSY * WITHIN
        await asyncio.sleep(seconds)
        for person in people:
            person.texts.clear()
        async with asyncio.timeout(BUSY * WITHIN):
            while not all(person.texts for person in people):
                await asyncio.sleep(0.02)
        wire.heal()
        healed = time.monotonic()
        done = [person.done for person in people]
        async with asyncio.timeout(BOUND):
            while any(person.done <= before for person, before in zip(people, done, strict=True)):
                await asyncio.sleep(0.02)
        assert time.monotonic() - healed < BUSY * WITHIN
        for person in people:
            person.is_over = True
        await asyncio.gather(*load)
        for person in people:
            assert person.longest < BUSY * WITHIN
            assert all("can't be reached" in text for text in person.texts), person.texts
        await all_that_runs_is_listed(callers, word)


async def all_that_runs_is_listed(callers: list[Caller], word: str) -> None:
    for caller in callers:
        async with asyncio.timeout(BOUND):
            while not (tasks := await running(caller)):
                await asyncio.sleep(0.1)
        (task,) = [task for task in tasks if word in task["command"]]
        assert [each for each in tasks if each is not task and "sleep 0.1" not in each["command"]] == []
        assert not (await caller.call("KillBgTask", task_id=task["task_id"])).is_error
    assert living(word) == set()
    for caller in callers:
        async with asyncio.timeout(BOUND):
            while await running(caller):
                await asyncio.sleep(0.1)


async def running(caller: Caller) -> list[dict[str, str]]:
    tasks: list[dict[str, str]] = (await caller.call("ListBgTasks")).structured["tasks"]
    return [task for task in tasks if task["status"] == "running"]


def through_a_wire(folder: Path, cuts: list[Callable[[Wire], None]], seconds: float) -> None:
    def body() -> None:
        with wire() as between, running_node(folder, "--sandbox", "none", host=NODE, enter=between.enter) as node:
            for cut in cuts:
                asyncio.run(cut_and_heal(node, between, cut, seconds))

    in_thread(body)


@pytest.mark.soak
def test_a_silent_partition_is_an_error_in_time_and_heals(tmp_path: Path) -> None:
    through_a_wire(tmp_path, [CUTS["both ways"]], 0.0)


@pytest.mark.soak
@pytest.mark.parametrize("seconds", [0.0, 15.0])
def test_partitions_of_each_kind_heal(tmp_path: Path, seconds: float) -> None:
    through_a_wire(tmp_path, list(CUTS.values()), seconds)


@pytest.mark.soak
def test_a_gateway_that_fell_silent_for_good_leaves_its_command_to_the_next(tmp_path: Path) -> None:
    """Another gateway, beside the node, lists the command as soon as the node has noticed."""
    command = "sleep 567"

    async def read_on(node: NodeProcess, principal: str) -> None:
        async with gateway(node) as remote, asyncio.timeout(NOTICED):
            mine = remote.get_or_open(principal)
            while not (runs := await mine.list()):
                await asyncio.sleep(0.2)
            assert [(run.command, run.status) for run in runs] == [(command, "running")]
            assert (await mine.kill(runs[0].id)).status == "killed"

    async def main(node: NodeProcess, between: Wire) -> None:
        principal = fake_principal()

        def beside() -> None:
            join_network(between.far)
            asyncio.run(read_on(node, principal))

        async with gateway(node) as remote:
            call = asyncio.ensure_future(remote.get_or_open(principal).execute(command, wait=BOUND, limit=100))
            await asyncio.sleep(0.5)
            between.drop(to_node=True, to_gateway=True)
            await asyncio.to_thread(in_thread, beside)
            with pytest.raises(ToolError, match="it is not known how far this came"):
                await call

    def body() -> None:
        with wire() as between, running_node(tmp_path, "--sandbox", "none", host=NODE, enter=between.enter) as node:
            asyncio.run(main(node, between))

    in_thread(body)
