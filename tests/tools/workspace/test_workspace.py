"""The workspace: runs by id, output by offset."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.tools.shell_commands import (
    BOUND,
    on_workspace,
    ran,
    workspace,
)
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.workspace import Workspace


def test_output_is_read_by_offset_while_it_grows_and_after(tmp_path: Path) -> None:
    async def body(mine: Workspace) -> None:
        os.mkfifo(mine.root / "go")
        task = await mine.start("printf 0123456789; read -r _ < go; printf ab", background=True)
        assert await mine.wait_output(task, 0, BOUND) == 10
        assert await mine.read(task, 3, 4) == b"3456"
        assert not await mine.wait_shell(task, 0)
        (mine.root / "go").write_text("\n")
        assert await mine.wait_output(task, 10, BOUND) == 12
        assert await mine.wait(task, BOUND)
        assert await mine.read(task, 9, 100) == b"9ab"
        assert await mine.size(task) == 12
        assert mine.output_path(task).read_bytes() == b"0123456789ab"

    on_workspace(body, tmp_path)


def test_a_key_given_twice_starts_nothing_twice(tmp_path: Path) -> None:
    async def body(mine: Workspace) -> None:
        first, second = await asyncio.gather(mine.start("echo x >> log", key="k"), mine.start("echo x >> log", key="k"))
        assert first == second
        assert await mine.wait(first, BOUND)
        assert await mine.start("echo x >> log", key="k") == first
        assert await mine.start("true", key="other") != first
        assert (mine.root / "log").read_text() == "x\n"

    on_workspace(body, tmp_path)


def test_the_loop_goes_on_while_a_command_floods_it(tmp_path: Path) -> None:
    async def body(mine: Workspace) -> None:
        flood = await mine.start("exec cat /dev/zero", background=True)
        await mine.wait_output(flood, 2**20, BOUND)
        assert await ran(mine, "echo well") == b"well\n"
        assert (await mine.kill(flood)).status == "killed"

    on_workspace(body, tmp_path)


def test_nothing_starts_after_the_close(tmp_path: Path) -> None:
    async def run() -> None:
        async with workspace(tmp_path) as mine:
            await mine.close(0.1)
            with pytest.raises(ToolError, match="shutting down"):
                await mine.start("true")

    asyncio.run(run())
