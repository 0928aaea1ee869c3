"""The rate of reading output: full speed at first, then steady, and slow for output that is not kept."""

import asyncio
import os
from pathlib import Path

from tests.tools.shell_commands import BOUND, on_workspace
from toolgate.tools.api.concurrency.rate_limiter import MIN_CHARGE
from toolgate.tools.workspace.local_workspace import LocalWorkspace
from toolgate.tools.workspace.output.run_output import MAX_OUTPUT
from toolgate.tools.workspace.processes.process import DISCARDED, output_cost


def test_output_that_is_not_kept_is_read_at_a_part_of_the_rate() -> None:
    assert [output_cost(size, is_kept=True) for size in (2, 2**20)] == [MIN_CHARGE, 2**20]
    assert [output_cost(size, is_kept=False) for size in (2, 2**20)] == [MIN_CHARGE * DISCARDED, 2**20 * DISCARDED]


def test_past_the_cap_a_command_goes_on_slowly_and_ends_as_it_likes(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        over = MAX_OUTPUT + 2**20
        task = await mine.start(f"head -c {over} /dev/zero; touch written; exec sleep 600", background=True)
        async with asyncio.timeout(BOUND):
            while not (mine.root / "written").exists():
                await asyncio.sleep(0.01)
        assert (await mine.run(task)).kept == MAX_OUTPUT
        flood = await mine.start("exec cat /dev/zero", background=True)
        await mine.wait_output(flood, MAX_OUTPUT - 1, BOUND)
        begun = os.times()
        await asyncio.sleep(1.0)  # a measurement: reading a flood at full speed would take a whole core
        used = os.times()
        assert used.user + used.system - begun.user - begun.system < 0.5
        assert (await mine.kill(flood)).status == "killed"

    on_workspace(body, tmp_path)
