"""A workspace that nothing uses: it closes, and each use opens it again, whenever that comes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.tools.shell_commands import BOUND, ENVIRONMENT, descriptors, until
from toolgate.tools.workspace.commands.environment import UnsandboxedEnvironment
from toolgate.tools.workspace.limits import UNLIMITED
from toolgate.tools.workspace.local_workspace import LocalWorkspace
from toolgate.tools.workspace.processes.zygote import CommandRunner

AT_ONCE: Any = 1e-6  # seconds


class Closings:
    """Counts how often a workspace was closed."""

    def __init__(self) -> None:
        self.count = 0
        self._next = asyncio.Event()

    def add(self) -> None:
        self.count += 1
        self._next.set()

    async def wait(self) -> None:
        async with asyncio.timeout(BOUND):
            await self._next.wait()
        self._next.clear()


@asynccontextmanager
async def idle_workspace(folder: Path, closings: Closings) -> AsyncIterator[LocalWorkspace]:
    """A workspace that closes as soon as nothing uses it."""
    root, runner = folder / "root", CommandRunner()
    root.mkdir()
    environment = UnsandboxedEnvironment(runner, replace(UNLIMITED, idle=AT_ONCE))
    mine = LocalWorkspace(
        root,
        folder / "spool",
        ENVIRONMENT,
        lambda end: end.confirm(),
        command_environment=environment,
        on_close=closings.add,
    )
    try:
        yield mine
    finally:
        await mine.close(0.2)
        await runner.close()


def test_calls_that_come_while_a_workspace_closes_are_served(tmp_path: Path) -> None:
    async def body() -> None:
        closings = Closings()
        async with idle_workspace(tmp_path, closings) as mine:
            for number in range(1, 201):
                _, end = await mine.execute("echo in", wait=BOUND, limit=99)
                assert end is not None and end.excerpt.text == "in\n"
                task = await mine.start(f"echo {number}", background=True, key=str(number))
                assert await mine.start("never", background=True, key=str(number)) == task
                assert await mine.wait(task, BOUND)
                listed, output, file = await asyncio.gather(
                    mine.list(), mine.take(task, 99), mine.write_file("file", b"x", suffix="")
                )
                assert [run.id for run in listed] == [2 * each for each in range(1, number + 1)]
                assert output.text == f"{number}\n" and file == mine.root / "file"
                if number >= 20 and closings.count > 1:  # a busy machine closes it late
                    return
            raise AssertionError("it was not closed between two calls")

    asyncio.run(body())


def test_a_closed_workspace_has_no_descriptor_and_finds_its_runs_again(tmp_path: Path) -> None:
    async def body() -> None:
        closings = Closings()
        async with idle_workspace(tmp_path, closings) as mine:
            before = descriptors()
            task = await mine.start("seq 3; sleep 600", background=True)
            assert await mine.wait_output(task, 5, BOUND) == 6
            assert not closings.count
            await mine.kill(task, 0.0)
            await closings.wait()
            await until(lambda: descriptors() == before + 1)  # the channel to the process that starts commands
            run = await mine.run(task)
            assert (run.status, (await mine.take(task, 99)).text) == ("killed", "1\n2\n3\n")
            await closings.wait()
            assert (await mine.take(task, 99)).text == ""

    asyncio.run(body())
