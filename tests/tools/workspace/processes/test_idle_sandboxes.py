"""Idle sandboxes: how many stay, which end first, and that a command finds its own or a new one."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.tools.shell_commands import BOUND
from toolgate.tools.workspace.processes.idle_sandboxes import IdleSandboxes
from toolgate.tools.workspace.processes.process import Launch
from toolgate.tools.workspace.processes.zygote import SUPERVISOR, CommandRunner

HERE = Path("/")


class FakeSandbox:
    """A fake sandbox that counts its starts."""

    uid = None
    is_alone = True

    def __init__(self) -> None:
        self.entered = 0
        self.ended = 0

    def spawn(self, channel: socket.socket, report: socket.socket) -> "subprocess.Popen[bytes]":
        self.entered += 1
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SUPERVISOR), str(channel.fileno())],
            pass_fds=[channel.fileno()],
            env={},
            start_new_session=True,
        )
        report.send(b"ready")
        return process

    def kill(self) -> None:
        self.ended += 1


def deaf(_: bytes) -> bool:
    return True


async def run(processes: CommandRunner, command: str = "true") -> None:
    launch = Launch(["bash", "-c", command], HERE, HERE, {"PATH": os.defpath})
    process = await processes.start(launch, deaf)
    async with asyncio.timeout(BOUND):
        await process.gone
        await asyncio.sleep(0)  # let other waiting tasks run


async def until_ended(room: FakeSandbox, times: int) -> None:
    async with asyncio.timeout(BOUND):
        while room.ended < times:
            await asyncio.sleep(0.01)


def test_of_idle_sandboxes_the_one_that_rested_longest_ends_first() -> None:
    async def body() -> None:
        resting = IdleSandboxes(most=2)
        rooms = [FakeSandbox() for _ in range(3)]
        houses = [CommandRunner(room, idle_sandboxes=resting) for room in rooms]
        await run(houses[0])
        await run(houses[1])
        await run(houses[0])  # now the second is the longest idle
        await run(houses[2])
        await until_ended(rooms[1], 1)
        assert [room.ended for room in rooms] == [0, 1, 0]
        await run(houses[1])  # has a new one
        await until_ended(rooms[0], 1)
        assert [room.entered for room in rooms] == [1, 2, 1]
        for runner in houses:
            await runner.close()

    asyncio.run(body())


def test_a_sandbox_in_which_something_runs_is_not_idle() -> None:
    async def body() -> None:
        resting = IdleSandboxes(most=1)
        rooms = [FakeSandbox() for _ in range(3)]
        houses = [CommandRunner(room, idle_sandboxes=resting) for room in rooms]
        launch = Launch(["sleep", "600"], HERE, HERE, {"PATH": os.defpath})
        lasting = await houses[0].start(launch, deaf)
        await run(houses[0])
        await run(houses[1])
        await run(houses[2])
        await until_ended(rooms[1], 1)
        assert [room.ended for room in rooms] == [0, 1, 0] and not lasting.gone.done()
        lasting.terminate(0.0)
        async with asyncio.timeout(BOUND):
            await lasting.gone
        await until_ended(rooms[2], 1)
        for runner in houses:
            await runner.close()

    asyncio.run(body())


def test_a_command_that_comes_while_its_sandbox_ends_has_a_new_one() -> None:
    async def body() -> None:
        room = FakeSandbox()
        runner = CommandRunner(room, idle_sandboxes=IdleSandboxes(most=0))
        for _ in range(5):
            await run(runner)  # each time it is ended as soon as nothing runs there
        await runner.close()
        assert (room.entered, room.ended) == (5, 5)

    asyncio.run(body())


def test_an_idle_sandbox_ends_after_a_while() -> None:
    async def body() -> None:
        room = FakeSandbox()
        runner = CommandRunner(room, idle_sandboxes=IdleSandboxes(seconds=0.05))
        await run(runner)
        await until_ended(room, 1)
        await runner.close()

    asyncio.run(body())
