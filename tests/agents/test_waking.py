"""The end of a command and the firing of a callback wake the model of interactive Claude Code."""

from pathlib import Path

import pytest

from tests.agents.drive import REMINDER
from tests.agents.waking import Waking, run_waking

pytestmark = pytest.mark.soak


def test_claude_code_begins_a_turn_when_a_task_ends_though_nobody_asks(tmp_path: Path) -> None:
    run = run_waking(tmp_path / "run")
    assert isinstance(run, Waking), run
    assert "server-side task bg-1~" in run.shown["background"] and "moved to the background" in run.shown["background"]
    assert '"status":"running"' in run.shown["tasks"]  # the model goes on meanwhile
    assert "server-side task callback-0~" in run.shown["callback"]
    first, second = run.turns
    assert f"callback 0 fired: {REMINDER}" in first
    assert "lit-42" in second and "[task 1 exited with code 3" in second
