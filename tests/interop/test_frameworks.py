"""Agents of other frameworks, each with its own client: what their model is sent when it calls a tool.

Each framework has its own environment (`make frameworks`), since their dependencies conflict."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.clients.raw_client import COMMAND, ROOT
from tests.clients.raw_http_client import site
from tests.interop.scripted_model import BEACON, Call, Model, scripted_model
from tests.servers import forked_command

DRIVE = Path(__file__).with_name("frameworks") / "drive.py"
ENVIRONMENTS = {"pydantic-ai": "mcp2", "openai-agents": "mcp2", "crewai": "mcp1"}
SOAKED = (  # each start takes some ten seconds, and CrewAI's fifty
    ("pydantic-ai", "stdio"),
    ("pydantic-ai", "http"),
    ("openai-agents", "stdio"),
    ("crewai", "stdio"),
    ("crewai", "http"),
)
SILENT = {  # turns off their telemetry
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_DISABLE_TRACKING": "true",
    "CREWAI_DISABLE_VERSION_CHECK": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
}
SKILL = "---\nname: keeping\ndescription: How a light is kept.\n---\nTrim the wick at dusk.\n"


@dataclass
class ModelRecord:
    """What one agent's model was sent, by its calls."""

    framework: str
    sent: dict[str, str]


def calls(workspace: Path, page: str) -> dict[str, Call]:
    """Return the model's calls, in order."""
    reminder = {"action": "set", "message": "look at the lamp", "delay_seconds": 1, "repeat_count": 1}
    return {
        "Bash": ("Bash", {"command": "echo lit; exit 3"}),
        "ReadDocs": ("ReadDocs", {"url": page}),
        "InvokeSkill": ("InvokeSkill", {"skill_name": "keeping"}),
        "ReadImage": ("ReadImage", {"file_path": str(workspace / "lamp.png")}),
        "TaskManager": ("TaskManager", {"action": "create", "query": "keep the light"}),
        "SetCallback": ("SetCallback", reminder),
        "hand-over": ("Bash", {"command": "sleep 6; echo late"}),
        "refusal": ("ReadImage", {"file_path": "/nowhere.png"}),
        "end": ("Bash", {"command": "sleep 1; echo end"}),
    }


def drive(folder: Path, framework: str, model: Model, url: str | None, command: list[str]) -> None:
    python = ROOT / ".venv" / "frameworks" / ENVIRONMENTS[framework] / "bin" / "python"
    assert python.exists(), "the frameworks are missing; install them with: make frameworks"
    told = {"framework": framework, "model": model.url, "url": url, "command": command}
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **SILENT}
    ended = forked_command.run([str(python), str(DRIVE), json.dumps(told)], "", cwd=folder, env=environment)
    assert ended.returncode == 0, ended.stderr[-3000:]


def agents() -> list[Any]:
    """Return each framework over stdio and HTTP; `make test` runs one of them."""
    return [
        pytest.param(
            (framework, carrier),
            id=f"{framework}-{carrier}",
            marks=pytest.mark.soak if (framework, carrier) in SOAKED else (),
        )
        for framework in ENVIRONMENTS
        for carrier in ("stdio", "http")
    ]


@pytest.fixture(scope="module", params=agents())
def told(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelRecord]:
    framework, carrier = request.param
    folder = tmp_path_factory.mktemp(f"{framework}-{carrier}")
    (folder / "skills" / "keeping").mkdir(parents=True)
    (folder / "skills" / "keeping" / "SKILL.md").write_text(SKILL)
    workspace = folder / "work"
    workspace.mkdir()
    Image.new("RGB", (8, 8), "red").save(workspace / "lamp.png")
    options = ["--skills", str(folder / "skills"), "--hold", "5", "--browser", "none", "--allow-private", "127.0.0.1"]
    with scripted_model([]) as model:
        script = calls(workspace, model.page)
        model.calls = list(script.values())
        if carrier == "http":
            with site(folder / "at", *options, "--workspace", str(workspace)) as at:
                drive(folder, framework, model, f"{at.url}/mcp", [])
        else:
            command = [COMMAND, *options, "--workspace", str(workspace), "--state", str(folder / "state")]
            drive(folder, framework, model, None, command)
        assert len(model.requests) == len(script) + 1
        yield ModelRecord(framework, {name: model.sent(place) for place, name in enumerate(script)})


@pytest.mark.parametrize(
    ("called", "said"),
    [
        ("Bash", r"lit\b"),
        ("Bash", r"exit.code\W+3\b"),
        ("ReadDocs", BEACON),
        ("InvokeSkill", "Trim the wick at dusk"),
        ("TaskManager", "keep the light"),
        ("hand-over", "ReadBgOutput"),
    ],
)
def test_a_model_is_sent_the_whole_answer(told: ModelRecord, called: str, said: str) -> None:
    assert re.search(said, told.sent[called])


def test_a_model_is_sent_a_callback_that_fired_meanwhile(told: ModelRecord) -> None:
    assert "look at the lamp" in "".join(told.sent[name] for name in ("hand-over", "refusal", "end"))


def test_a_model_is_sent_the_image_where_its_framework_can(told: ModelRecord) -> None:
    """CrewAI sends its model text alone."""
    assert ("data:image/png;base64," in told.sent["ReadImage"]) is (told.framework != "crewai")
    assert "lamp.png: png, 8" in told.sent["ReadImage"]


def test_a_model_is_told_why_a_tool_refuses(told: ModelRecord) -> None:
    assert "/nowhere.png" in told.sent["refusal"]
