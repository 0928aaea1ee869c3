"""How fast output is read: at full speed at first, then steadily, and what is not kept slowly."""

import asyncio
import os
from pathlib import Path

from tests.tools.shell_commands import BOUND, on_workspace
from toolgate.tools.workspace.output_rate import BURST, DULL, READ, STEADY, OutputRate
from toolgate.tools.workspace.spool import MAX_OUTPUT
from toolgate.tools.workspace.workspace import Workspace


def test_a_burst_is_read_at_full_speed_and_what_follows_at_a_steady_rate() -> None:
    pace = OutputRate()
    assert pace.took(BURST, 1000.0, kept=True) == 0.0
    assert pace.took(STEADY, 1000.0, kept=True) == 1.0
    assert pace.took(READ, 1001.0, kept=True) == READ / STEADY
    assert pace.took(STEADY - READ, 1001.0, kept=True) == 1.0


def test_what_is_not_kept_is_read_at_a_part_of_the_rate() -> None:
    pace = OutputRate()
    pace.took(BURST, 1000.0, kept=True)
    assert pace.took(STEADY // DULL, 1000.0, kept=False) == 1.0


def test_time_pays_for_what_was_read_but_not_for_what_will_be() -> None:
    pace = OutputRate()
    assert pace.took(BURST, 1000.0, kept=True) == 0.0
    assert pace.took(BURST, 2000.0, kept=True) == 0.0
    assert pace.took(STEADY, 2000.0, kept=True) == 1.0


def test_a_read_of_a_few_bytes_counts_for_what_it_costs() -> None:
    pace = OutputRate()
    reads = BURST // READ
    assert [pace.took(2, 0.0, kept=True) for _ in range(reads)] == [0.0] * reads
    assert pace.took(2, 0.0, kept=True) == READ / STEADY


def test_past_the_cap_a_command_goes_on_slowly_and_ends_as_it_likes(tmp_path: Path) -> None:
    async def body(mine: Workspace) -> None:
        over = MAX_OUTPUT + 2**20
        task = await mine.start(f"head -c {over} /dev/zero; touch written; exec sleep 600", background=True)
        async with asyncio.timeout(BOUND):
            while not (mine.root / "written").exists():
                await asyncio.sleep(0.01)
        assert (await mine.run(task)).kept == MAX_OUTPUT
        flood = await mine.start("exec cat /dev/zero", background=True)
        await mine.grown(flood, MAX_OUTPUT - 1, BOUND)
        begun = os.times()
        await asyncio.sleep(1.0)  # a measurement: of a flood that was read as it came this takes all of a core
        used = os.times()
        assert used.user + used.system - begun.user - begun.system < 0.5
        assert (await mine.kill(flood)).status == "killed"

    on_workspace(body, tmp_path)
