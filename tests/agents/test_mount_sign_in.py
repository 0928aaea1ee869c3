"""The link to sign in at a mounted server arrives at what the person of a real agent sees."""

import json
from pathlib import Path

import pytest

from tests.agents.clients import AGENTS
from tests.agents.mount_sign_in import Linked, run_mount_sign_in

pytestmark = pytest.mark.soak


def test_claude_code_shows_the_link_and_its_call_goes_on(tmp_path: Path) -> None:
    run = run_mount_sign_in("claude-code", tmp_path / "run")
    assert isinstance(run, Linked), run
    assert run.asked, run
    asked = json.loads(run.asked)
    assert (asked["mcp_server_name"], asked["mode"], asked["url"]) == ("toolgate", "url", run.link)
    assert all('"ada"' in run.shown[step] for step in ("connected", "unconnected", "again")), run


@pytest.mark.parametrize("agent", [name for name in AGENTS if name != "claude-code"])
def test_others_show_the_model_the_link_and_the_next_call_works(agent: str, tmp_path: Path) -> None:
    run = run_mount_sign_in(agent, tmp_path / "run")
    assert isinstance(run, Linked), run
    assert f"SIGN_IN_REQUIRED: connect it at {run.link}, then try once more" in run.shown["unconnected"], run
    assert "ada" in run.shown["connected"] and "ada" in run.shown["again"], run
