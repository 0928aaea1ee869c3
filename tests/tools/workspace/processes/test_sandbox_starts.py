"""Starts of sandboxes: how many begin at once, who is next, and what a caller leaves behind that waits no longer."""

import asyncio
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.tools.shell_commands import BOUND
from toolgate.tools.workspace.processes.process import CommandStartError, Launch, Process
from toolgate.tools.workspace.processes.start_queue import StartQueue, StartWait
from toolgate.tools.workspace.processes.zygote import SUPERVISOR, CommandRunner

HERE = Path("/")
TRUE = Launch(["true"], HERE, HERE, {"PATH": os.defpath})


class FakeSandboxes:
    """Fake sandboxes that are ready when the test says so. `begun` has the names of those that began, in order."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.open = asyncio.Semaphore(0)  # one release for each begin
        self._reports: deque[tuple[str, socket.socket]] = deque()

    def make_runner(self, name: str, starts: StartQueue, owner: str = "") -> CommandRunner:
        return CommandRunner(FakeSandbox(name, self), starts=starts, owner=owner or name)

    def begin(self, name: str, report: socket.socket) -> None:
        self.begun.append(name)
        self._reports.append((name, report.dup()))
        self.open.release()

    async def wait_begun(self, count: int) -> None:
        async with asyncio.timeout(BOUND):
            for _ in range(count):
                await self.open.acquire()

    @property
    def entering(self) -> list[str]:
        return [name for name, _ in self._reports]

    def finish(self, text: bytes = b"ready") -> str:
        """End the start that began first."""
        name, report = self._reports.popleft()
        with report:
            report.send(text)
        return name


class FakeSandbox:
    uid = None
    is_alone = True

    def __init__(self, name: str, all: FakeSandboxes) -> None:
        self._name = name
        self._all = all

    def spawn(self, channel: socket.socket, report: socket.socket) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SUPERVISOR), str(channel.fileno())],
            pass_fds=[channel.fileno()],
            env={},
            start_new_session=True,
        )
        self._all.begin(self._name, report)
        return process

    def kill(self) -> None: ...


def run(body: Callable[[FakeSandboxes], Awaitable[None]]) -> None:
    async def with_sandboxes() -> None:
        async with asyncio.timeout(BOUND):
            await body(FakeSandboxes())

    asyncio.run(with_sandboxes())


def start(runner: CommandRunner, wait: StartWait | None = None) -> "asyncio.Task[Process]":
    return asyncio.ensure_future(runner.start(TRUE, lambda _: True, wait=wait))


async def let_run() -> None:
    """Let each task that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def end(*runners: CommandRunner) -> None:
    for each in runners:
        await each.close()


def test_of_forty_people_two_sandboxes_start_at_once_and_all_get_theirs() -> None:
    async def body(sandboxes: FakeSandboxes) -> None:
        starts = StartQueue(2)
        names = [f"person {number}" for number in range(40)]
        runners = [sandboxes.make_runner(name, starts) for name in names]
        commands = [start(each) for each in runners]
        await sandboxes.wait_begun(2)
        for done in range(40):
            await let_run()
            assert sandboxes.entering == names[done : done + 2]
            sandboxes.finish()
            if done < 38:
                await sandboxes.wait_begun(1)
        assert [(await (await each).ended) for each in commands] == [0] * 40
        assert sandboxes.begun == names  # the oldest first
        await end(*runners)

    run(body)


def test_commands_of_one_person_share_the_start_of_a_sandbox() -> None:
    async def body(sandboxes: FakeSandboxes) -> None:
        starts = StartQueue(1)
        first, ada = sandboxes.make_runner("first", starts), sandboxes.make_runner("ada", starts)
        commands = [start(first), *(start(ada) for _ in range(3))]
        await sandboxes.wait_begun(1)
        commands[1].cancel()  # the others keep the place
        await let_run()
        sandboxes.finish()
        await sandboxes.wait_begun(1)
        sandboxes.finish()
        for each in (commands[0], *commands[2:]):
            assert await (await each).ended == 0
        assert sandboxes.begun == ["first", "ada"]
        await end(first, ada)

    run(body)


def test_a_caller_that_waits_no_longer_leaves_the_queue() -> None:
    async def body(sandboxes: FakeSandboxes) -> None:
        starts = StartQueue(1)
        runners = {name: sandboxes.make_runner(name, starts) for name in ("first", "cancelled", "left", "last")}
        wait = StartWait()
        first, cancelled = start(runners["first"]), start(runners["cancelled"])
        left, last = start(runners["left"], wait), start(runners["last"])
        await sandboxes.wait_begun(1)
        cancelled.cancel()
        wait.leave()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.raises(CommandStartError):
            await left
        sandboxes.finish()
        await sandboxes.wait_begun(1)
        sandboxes.finish()
        assert [await (await each).ended for each in (first, last)] == [0, 0]
        assert sandboxes.begun == ["first", "last"]
        again = start(runners["cancelled"])  # finds no trace of the earlier wait
        await sandboxes.wait_begun(1)
        sandboxes.finish()
        assert await (await again).ended == 0
        await end(*runners.values())

    run(body)


def test_a_start_that_has_begun_serves_the_next_command_of_a_cancelled_caller() -> None:
    async def body(sandboxes: FakeSandboxes) -> None:
        starts = StartQueue(1)
        ada, ben = sandboxes.make_runner("ada", starts), sandboxes.make_runner("ben", starts)
        command = start(ada)
        await sandboxes.wait_begun(1)
        command.cancel()
        waiting = start(ben)
        await let_run()
        assert sandboxes.entering == ["ada"]  # it still takes the processor
        sandboxes.finish()
        await sandboxes.wait_begun(1)
        sandboxes.finish()
        assert await (await waiting).ended == 0
        assert await (await start(ada)).ended == 0
        assert sandboxes.begun == ["ada", "ben"]
        await end(ada, ben)

    run(body)


def test_a_call_that_has_waited_long_enough_gets_an_error_that_says_what_to_do() -> None:
    async def body(sandboxes: FakeSandboxes) -> None:
        starts = StartQueue(1, patience=0.01)
        first, late = sandboxes.make_runner("first", starts), sandboxes.make_runner("late", starts)
        command = start(first)
        await sandboxes.wait_begun(1)
        with pytest.raises(CommandStartError, match="busy: it starts 1 sandboxes at once; try again in a minute"):
            await start(late)
        sandboxes.finish()
        assert await (await command).ended == 0
        assert sandboxes.begun == ["first"]
        await end(first, late)

    run(body)


def test_one_person_has_half_of_the_starts() -> None:
    async def body(sandboxes: FakeSandboxes) -> None:
        starts = StartQueue(2)
        greedy = [sandboxes.make_runner(f"greedy {number}", starts, owner="greedy") for number in range(3)]
        ada = sandboxes.make_runner("ada", starts)
        commands = [start(each) for each in (*greedy, ada)]
        await sandboxes.wait_begun(2)
        assert sandboxes.begun == ["greedy 0", "ada"]
        for _ in range(2):
            sandboxes.finish()
        for _ in range(2):
            await sandboxes.wait_begun(1)
            sandboxes.finish()
        assert [await (await each).ended for each in commands] == [0] * 4
        await end(*greedy, ada)

    run(body)


def test_a_failed_start_frees_its_turn_and_keeps_no_descriptor() -> None:
    async def body(sandboxes: FakeSandboxes) -> None:
        before = sorted(os.listdir("/proc/self/fd"))
        starts = StartQueue(1)
        runners = [sandboxes.make_runner(str(number), starts) for number in range(3)]
        commands = [start(each) for each in runners]
        abandoned = commands.pop(1)
        await sandboxes.wait_begun(1)
        sandboxes.finish(b"no namespace")
        with pytest.raises(CommandStartError, match="the sandbox can't be started: no namespace"):
            await commands[0]
        await sandboxes.wait_begun(1)
        abandoned.cancel()  # its start goes on, and fails
        await let_run()
        sandboxes.finish(b"no namespace")
        await sandboxes.wait_begun(1)
        sandboxes.finish()
        assert await (await commands[1]).ended == 0
        await end(*runners)
        assert sorted(os.listdir("/proc/self/fd")) == before

    run(body)


def test_what_waits_for_a_sandbox_ends_with_the_server() -> None:
    async def body(sandboxes: FakeSandboxes) -> None:
        starts = StartQueue(1)
        first, second = sandboxes.make_runner("first", starts), sandboxes.make_runner("second", starts)
        commands = [start(first), start(second)]
        await sandboxes.wait_begun(1)
        await second.close()
        with pytest.raises(CommandStartError, match="shutting down"):
            await commands[1]
        sandboxes.finish()
        assert await (await commands[0]).ended == 0
        await first.close()
        assert sandboxes.begun == ["first"]

    run(body)
