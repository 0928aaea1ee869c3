"""`run_program` of the plugin API: a program gets its input, and ends with its call."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from tests.clients.raw_client import PATIENCE, eventually, processes_with
from toolgate.tools import PYTHON, ProgramResult, ToolError
from toolgate.tools.workspace.commands.environment import UnsandboxedEnvironment
from toolgate.tools.workspace.limits import UNLIMITED, Limits
from toolgate.tools.workspace.local_workspace import LocalWorkspace
from toolgate.tools.workspace.processes.zygote import CommandRunner

VARIABLES = {"PATH": "/usr/bin:/bin"}
LONG = f"600.{os.getpid()}"  # seconds of a sleep that no other test runs


def test_a_program_gets_its_input_and_its_output_is_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_workspace(tmp_path) as workspace:
            data = bytes(range(256)) * 4_000
            assert await workspace.run_program(["cat"], given=data) == ProgramResult(0, data, False)
            assert await workspace.run_program(["cat"], given=data, limit=3) == ProgramResult(0, data[:3], True)
            assert await workspace.run_program(["cat"]) == ProgramResult(0, b"", False)
            said = await workspace.run_program(
                [PYTHON, "-I", "-c", "import os; print(os.getcwd()); raise SystemExit(3)"]
            )
            assert said == ProgramResult(3, f"{workspace.root}\n".encode(), False)
            with pytest.raises(ToolError, match="no-such-program was not started"):
                await workspace.run_program(["no-such-program"])
            assert await workspace.list() == []

    asyncio.run(main())


def test_a_program_ends_at_its_time_and_with_its_call(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_workspace(tmp_path) as workspace:
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                await workspace.run_program(["bash", "-c", f"(sleep {LONG} & wait)"], timeout=0.5)
            assert await workspace.run_program(["bash", "-c", f"sleep {LONG} & echo done"]) == ProgramResult(
                0, b"done\n", truncated=False
            )
            assert await has_ended()  # a killed process is seen for a moment
            assert time.monotonic() - began < PATIENCE
            call = asyncio.ensure_future(workspace.run_program(["bash", "-c", f"echo >begun; sleep {LONG}"]))
            while not (workspace.root / "begun").exists():
                await asyncio.sleep(0.01)
            call.cancel()
            await asyncio.wait([call])
            assert (call.cancelled(), await has_ended()) == (True, True)

    asyncio.run(main())


def test_a_program_that_is_cancelled_twice_leaves_nothing_behind(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_workspace(tmp_path, Limits()) as workspace:
            await workspace.run_program(["true"])
            begun = workspace.root / "begun"
            call = asyncio.ensure_future(workspace.run_program(["bash", "-c", f"echo >begun; sleep {LONG}"]))
            while not begun.exists():
                await asyncio.sleep(0.01)
            for _ in range(2):
                call.cancel()
                await asyncio.sleep(0)
            await asyncio.wait([call])
            assert call.cancelled()
            assert await has_ended()
            async with asyncio.timeout(PATIENCE):
                while len(asyncio.all_tasks()) > 1:  # the disk is measured while one runs
                    await asyncio.sleep(0.05)

    asyncio.run(main())


async def has_ended() -> bool:
    return await asyncio.to_thread(eventually, lambda: not processes_with(LONG))


@contextlib.asynccontextmanager
async def open_workspace(
    folder: Path, limits: Limits = UNLIMITED, variables: Mapping[str, str] = VARIABLES
) -> AsyncIterator[LocalWorkspace]:
    (folder / "root").mkdir()
    runner = CommandRunner()
    environment = UnsandboxedEnvironment(runner, limits)
    workspace = LocalWorkspace(
        folder / "root", folder / "spool", variables, lambda _: None, command_environment=environment
    )
    try:
        yield workspace
    finally:
        await workspace.close(0.1)
        await runner.close()
