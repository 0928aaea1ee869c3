"""The thirteen tools as they are offered: names, order, parameters, hints, output schemas, their cost to a model."""

import json
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest

from tests.clients.raw_client import REVISIONS, STATELESS, Server

Start = Callable[..., Server]

# name → (required, {parameter: type}); the fixed contract of the original server
CONTRACT: dict[str, tuple[list[str], dict[str, str]]] = {
    "Bash": (["command"], {"command": "string", "timeout": "integer"}),
    "ReadImage": (["file_path"], {"file_path": "string"}),
    "ReadDocs": (["url"], {"url": "string", "format": "string", "wait_ms": "integer"}),
    "WebSearch": (["query"], {"query": "string"}),
    "TaskManager": (
        ["action", "query"],
        {"action": "string", "query": "string", "task_id": "integer", "step_id": "integer", "text": "string"},
    ),
    "PlanMode": (["action"], {"action": "string", "goal": "string", "plan_file": "string"}),
    "AskUserQuestion": (["questions_json"], {"questions_json": "string"}),
    "InvokeSkill": (["skill_name"], {"skill_name": "string", "arguments": "string"}),
    "BackgroundBash": (["command"], {"command": "string"}),
    "ReadBgOutput": (["task_id"], {"task_id": "integer"}),
    "ListBgTasks": ([], {}),
    "KillBgTask": (["task_id"], {"task_id": "integer"}),
    "SetCallback": (
        ["action"],
        {
            "action": "string",
            "message": "string",
            "delay_seconds": "integer",
            "repeat_count": "integer",
            "callback_id": "integer",
        },
    ),
}
ENUMS = {
    ("ReadDocs", "format"): ["text", "html", "markdown"],
    ("TaskManager", "action"): ["create", "add", "complete", "list", "pending", "switch"],
    ("PlanMode", "action"): ["enter", "exit", "status", "json", "reset"],
    ("SetCallback", "action"): ["set", "list", "cancel"],
}
DEFAULTS = {("Bash", "timeout"): 30000, ("ReadDocs", "format"): "markdown"}
LIMITS = {("Bash", "timeout"): (1, 600000), ("SetCallback", "delay_seconds"): (1, 3600)}

# read-only, destructive, idempotent, open world
HINTS = {
    "Bash": (False, True, False, True),
    "ReadImage": (True, False, True, False),
    "ReadDocs": (True, False, True, True),
    "WebSearch": (True, False, True, True),
    "BackgroundBash": (False, True, False, True),
    "ListBgTasks": (True, False, True, False),
    "KillBgTask": (False, True, True, False),
}

LEAN = {"Bash", "ReadBgOutput", "ReadImage", "ReadDocs", "InvokeSkill"}
STRUCTURED = {  # the fields that are always there
    "Bash": [
        "stdout_and_stderr",
        "exit_code",
        "timed_out",
        "duration_ms",
        "truncated",
        "output_file",
        "cwd",
        "sandbox",
        "task_id",
        "note",
    ],
    "BackgroundBash": ["task_id", "sandbox"],
    "ReadBgOutput": ["task_id", "output", "status", "exit_code", "truncated", "note"],
    "ListBgTasks": ["tasks"],
    "KillBgTask": ["task_id", "status", "exit_code"],
    "ReadImage": ["format", "width", "height", "bytes", "scaled"],
    "ReadDocs": ["url", "title", "status", "format", "rendered", "truncated", "text"],
    "WebSearch": ["results", "engines"],
    "TaskManager": ["task_id", "tasks"],
    "PlanMode": ["active", "goal", "plan_file", "started_at", "note"],
    "AskUserQuestion": ["answers", "outcome", "note"],
    "InvokeSkill": ["name", "path", "files", "body"],
    "SetCallback": ["callbacks"],
}


def listed(server: Server) -> dict[str, dict[str, Any]]:
    return {tool["name"]: tool for tool in server.request("tools/list")["tools"]}


@pytest.mark.parametrize("revision", REVISIONS)
def test_the_thirteen_are_offered_in_order_with_the_fixed_parameters(start: Start, revision: str) -> None:
    tools = listed(start(revision=revision))
    assert list(tools) == list(CONTRACT)
    for name, (required, types) in CONTRACT.items():
        schema = tools[name]["inputSchema"]
        assert schema["type"] == "object" and schema["additionalProperties"] is False
        assert sorted(schema.get("required", [])) == sorted(required), name
        assert {key: field["type"] for key, field in schema["properties"].items()} == types, name
    for (name, field), values in ENUMS.items():
        assert sorted(tools[name]["inputSchema"]["properties"][field]["enum"]) == sorted(values)
    for (name, field), value in DEFAULTS.items():
        assert tools[name]["inputSchema"]["properties"][field]["default"] == value
    for (name, field), (least, most) in LIMITS.items():
        declared = tools[name]["inputSchema"]["properties"][field]
        assert (declared["minimum"], declared["maximum"]) == (least, most)


def test_every_tool_has_a_title_and_all_four_hints(start: Start) -> None:
    for name, tool in listed(start()).items():
        hints = tool["annotations"]
        assert tool["title"] and hints["title"] == tool["title"]
        told = tuple(hints[key] for key in ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"))
        assert all(isinstance(hint, bool) for hint in told)
        assert HINTS.get(name, told) == told, name


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25", STATELESS])
@pytest.mark.parametrize("options", [(), ("--structured-output", "full")])
def test_every_output_schema_is_valid_and_has_the_contracts_fields(
    start: Start, revision: str, options: tuple[str, ...]
) -> None:
    tools = listed(start(*options, revision=revision))
    for name, fields in STRUCTURED.items():
        if name in LEAN and not options:
            assert "outputSchema" not in tools[name], name
            continue
        schema = tools[name]["outputSchema"]
        jsonschema_rs.validator_for(schema)
        assert schema["type"] == "object"
        assert sorted(schema["required"]) == sorted(fields), name
        assert schema["properties"].keys() - fields <= {"note", "meanwhile"}, name
        assert schema["properties"]["meanwhile"] == {"type": "array", "items": {"type": "string"}}


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26"])
def test_older_revisions_are_sent_nothing_they_do_not_know(start: Start, revision: str) -> None:
    known = {"name", "description", "inputSchema"} | ({"annotations"} if revision == "2025-03-26" else set())
    server = start(revision=revision)
    for tool in listed(server).values():
        assert set(tool) == known
    assert set(server.call("Bash", {"command": "true"})) == {"content", "isError"}


def test_what_a_model_is_shown_stays_within_its_budget(start: Start) -> None:
    tools = listed(start())
    for name, tool in tools.items():
        assert len(tool["description"].encode()) < 1_000, name
    shown = [[tool["name"], tool["description"], tool["inputSchema"]] for tool in tools.values()]
    assert len(json.dumps(shown, ensure_ascii=False).encode()) < 12_000


@pytest.mark.parametrize("revision", ["2025-11-25", STATELESS])
def test_the_first_line_of_each_description_is_a_whole_sentence(start: Start, revision: str) -> None:
    for name, tool in listed(start(revision=revision)).items():
        first, *rest = tool["description"].splitlines()
        assert len(first) < 100 and first.endswith("."), name
        assert all(line.strip() for line in rest[1:]) and not any(rest[:1]), name  # one empty line sets it apart


def test_limits_and_defaults_are_in_the_descriptions_too(start: Start) -> None:
    for name, tool in listed(start()).items():
        for field, declared in tool["inputSchema"]["properties"].items():
            for keyword in ("default", "minimum", "maximum"):
                told = declared.get(keyword)
                if type(told) is int and keyword != "minimum":
                    assert str(told) in declared["description"], (name, field, keyword)


def test_the_list_is_the_same_every_time(start: Start) -> None:
    server = start()
    first = server.request("tools/list")
    assert all(server.request("tools/list") == first for _ in range(3))


@pytest.mark.parametrize(
    ("tool", "arguments", "begin", "end"),
    [
        ("ReadImage", {"file_path": "x" * 500_000}, "'xxx", "is not an absolute path: give one that begins with /"),
        ("TaskManager", {"action": "switch", "query": "x" * 500_000}, "no task is named 'xxx", "what there is"),
    ],
)
def test_an_error_does_not_repeat_a_long_argument_to_the_model(
    start: Start, tool: str, arguments: dict[str, Any], begin: str, end: str
) -> None:
    result = start().call(tool, arguments)
    text = result["content"][0]["text"]
    assert result["isError"] and text.startswith(begin) and " … " in text and text.endswith(end)
    assert len(text) <= 10_000
