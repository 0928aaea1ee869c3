"""The official TypeScript client against the real server process, in each way it can negotiate."""

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import COMMAND, PATIENCE, children
from tests.clients.raw_http_client import site
from tests.interop.node import FOLDER, node, package
from tests.interop.official_clients import THIRTEEN, WAYS, Negotiation


@pytest.mark.brief("stdio auto", "http 2026-07-28", "sse legacy")
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_typescript_client_lists_calls_asks_hears_and_cancels(tmp_path: Path, way: Negotiation) -> None:
    before = children(os.getpid())
    with contextlib.ExitStack() as stack:
        folder, target = tmp_path, COMMAND
        if way.carrier != "stdio":
            listening = stack.enter_context(site(tmp_path))
            folder = tmp_path / "work"
            target = listening.url + ("/sse" if way.carrier == "sse" else "/mcp")
        check_typescript_client(way.mode, folder, target, tmp_path)
    assert children(os.getpid()) <= before


def check_typescript_client(mode: str, folder: Path, target: str, home: Path) -> None:
    """Have the client list, call, ask, hear and cancel at `target`, whose commands run in `folder`."""
    package("@modelcontextprotocol/client")
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TOOLGATE_STATE": str(home / "state")}
    ended = subprocess.run(
        [node(), str(FOLDER / "client.mjs"), mode, str(folder), target],
        env=environment,
        capture_output=True,
        timeout=2 * PATIENCE,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    said: dict[str, Any] = json.loads(ended.stdout)
    assert said["revision"] == ("2025-11-25" if mode == "legacy" else "2026-07-28")
    assert said["server"] == "toolgate"
    assert said["tools"] == THIRTEEN
    _check_calls(said)
    _check_conversation(said)
    assert said["closing"] < 1_000  # ms; nothing ran any more


def _check_calls(said: dict[str, Any]) -> None:
    called = said["called"]
    assert called["content"] == [{"type": "text", "text": "out\nexit code: 3"}]
    assert "structuredContent" not in called
    assert not called.get("isError")
    assert said["unknown"]["code"] == -32602
    assert said["wrong"]["isError"] is True
    assert "timeout" in said["wrong"]["content"][0]["text"]


def _check_conversation(said: dict[str, Any]) -> None:
    answers = [{"question": "Tea or coffee?", "selected": "tea"}]
    assert said["asked"]["structuredContent"] == {"answers": answers, "outcome": "answered", "note": None}
    (form,) = said["forms"]
    assert form["choices"] == ["tea", "coffee"]
    assert said["slow"]["content"] == [{"type": "text", "text": "one\ntwo\n"}]
    steps = [step["progress"] for step in said["progress"]]
    assert steps == sorted(set(steps))
    assert steps
    assert "result" not in said["cancelled"]
    assert said["after"]["content"] == [{"type": "text", "text": "gone\n"}]
