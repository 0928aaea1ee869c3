"""The workspace: runs by id, output by offset."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.tools.shell_commands import (
    BOUND,
    on_workspace,
    ran,
    until,
    workspace,
)
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.local_workspace import LocalWorkspace


def test_output_is_read_by_offset_while_it_grows_and_after(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
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
        assert (mine.output_folder / str(task) / "output").read_bytes() == b"0123456789ab"

    on_workspace(body, tmp_path)


def test_a_key_given_twice_starts_nothing_twice(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        first, second = await asyncio.gather(mine.start("echo x >> log", key="k"), mine.start("echo x >> log", key="k"))
        assert first == second
        assert await mine.wait(first, BOUND)
        assert await mine.start("echo x >> log", key="k") == first
        assert await mine.start("true", key="other") != first
        assert (mine.root / "log").read_text() == "x\n"

    on_workspace(body, tmp_path)


def test_a_cancelled_call_that_repeats_a_key_does_not_disturb_the_start(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        await mine.list()  # opens the folders
        calls = [asyncio.ensure_future(mine.start("echo x", key="k")) for _ in range(2)]
        await until(lambda: len(mine.running()) == 1)
        calls[1].cancel()
        started, cancelled = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(cancelled, asyncio.CancelledError)
        assert isinstance(started, int)
        assert await mine.wait(started, BOUND)
        assert await mine.read(started, 0, 10) == b"x\n"

    on_workspace(body, tmp_path)


def test_what_is_returned_of_a_run_does_not_change(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        task = await mine.start("sleep 100", background=True)
        returned = [await mine.run(task), *(await mine.list()), *mine.running()]
        killed = await mine.kill(task)
        killed.hits.append("of the caller's own")
        killed.status = "lost"
        assert [run.status for run in returned] == ["running"] * 3
        assert ((await mine.run(task)).status, (await mine.run(task)).hits) == ("killed", [])

    on_workspace(body, tmp_path)


def test_a_quick_command_is_concluded_as_it_is_executed(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        run_id, end = await mine.execute("cd /; echo é; sleep 100 & exit 3", wait=BOUND, limit=100, timeout=BOUND)
        assert end is not None
        assert (end.run.id, end.run.status, end.run.exit_code, end.run.background) == (run_id, "running", 3, True)
        assert (end.ended, end.gone, end.refused, end.cwd) == (True, False, None, Path("/"))
        assert 0 < end.seconds < end.run.runtime_ms / 1000  # without the wait for what it left running
        assert (end.excerpt.text, [run.id for run in await mine.list()]) == ("é\n", [run_id])

    on_workspace(body, tmp_path)


def test_a_slow_command_is_concluded_later(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        os.mkfifo(mine.root / "go")
        run_id, end = await mine.execute("read -r word < go; echo $word", wait=0.05, limit=100)
        assert end is None
        (mine.root / "go").write_text("well\n")
        assert await mine.wait_shell(run_id, BOUND)
        end = await mine.conclude(run_id, limit=100)
        assert (end.gone, end.excerpt.text) == (True, "well\n")
        with pytest.raises(KeyError):  # the conclusion has all of it
            await mine.run(run_id)

    on_workspace(body, tmp_path)


def test_a_cancelled_execution_leaves_nothing(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        os.mkfifo(mine.root / "begun")
        call = asyncio.ensure_future(mine.execute("echo > begun; sleep 100", wait=BOUND, limit=100))
        await asyncio.to_thread((mine.root / "begun").read_text)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert list(mine.running()) == []
        with pytest.raises(KeyError):
            await mine.run(1)

    on_workspace(body, tmp_path)


def test_the_loop_goes_on_while_a_command_floods_it(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        flood = await mine.start("exec cat /dev/zero", background=True)
        await mine.wait_output(flood, 2**20, BOUND)
        assert await ran(mine, "echo well") == b"well\n"
        assert (await mine.kill(flood)).status == "killed"

    on_workspace(body, tmp_path)


def test_a_command_that_is_too_long_is_refused_with_another_way(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        with pytest.raises(ToolError, match="5,000,002 bytes, over 4,194,304: write its parts to a file with several"):
            await mine.start(": " + "x" * 5_000_000)

    on_workspace(body, tmp_path)


def test_nothing_starts_after_the_close(tmp_path: Path) -> None:
    async def run() -> None:
        async with workspace(tmp_path) as mine:
            await mine.close(0.1)
            with pytest.raises(ToolError, match="shutting down"):
                await mine.start("true")

    asyncio.run(run())
