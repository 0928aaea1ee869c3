"""Arguments that say nothing: a null for what may be left out, before anything is held against the schema."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.wire import Server

Start = Callable[..., Server]

PLUGIN = '''
from typing import Any

from toolgate.tools import tool

RAW = {
    "type": "object",
    "$defs": {"word": {"type": "string"}, "perhaps": {"type": ["string", "null"]}},
    "properties": {
        "word": {"$ref": "#/$defs/word"},
        "perhaps": {"$ref": "#/$defs/perhaps"},
        "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "anything": {},
        "choice": {"enum": ["a", "b"]},
        "number": {"type": "integer", "minimum": 1},
    },
}


@tool(read_only=True, input=RAW)
async def raw(**given: Any) -> str:
    """Say which arguments came."""
    return repr(given)


@tool(read_only=True)
async def typed(count: int, note: str | None = "none", names: list[str] | None = None, size: int = 7) -> str:
    """Say what each argument is."""
    return repr((count, note, names, size))
'''


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("TaskManager", {"action": "list", "query": "", "task_id": None, "step_id": None, "text": None}),
        ("PlanMode", {"action": "status", "goal": None, "plan_file": None}),
        (
            "SetCallback",
            {"action": "list", "message": None, "delay_seconds": None, "repeat_count": None, "callback_id": None},
        ),
        ("Bash", {"command": "echo here", "timeout": None}),
        ("InvokeSkill", {"skill_name": "toolgate-tools", "arguments": None}),
    ],
)
def test_a_null_for_an_optional_argument_of_the_thirteen_counts_as_left_out(
    connect: Start, tool: str, arguments: dict[str, object]
) -> None:
    server = connect()
    bare = {name: value for name, value in arguments.items() if value is not None}
    assert server.text(tool, arguments) == server.text(tool, bare)


def test_a_null_for_a_required_argument_is_refused_by_name(connect: Start) -> None:
    told = connect().error("TaskManager", {"action": "list", "query": None})
    assert told.startswith("TaskManager: argument 'query': null is not of type")


def test_a_null_for_an_argument_that_does_not_exist_is_refused(connect: Start) -> None:
    assert "'colour'" in connect().error("TaskManager", {"action": "list", "query": "", "colour": None})


@pytest.fixture
def plugin(start: Start, tmp_path: Path) -> Server:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "nulls.py").write_text(PLUGIN)
    return start("-p", str(folder))


def test_a_plugins_argument_that_takes_null_gets_it_and_the_others_their_defaults(plugin: Server) -> None:
    given = {"count": 1, "note": None, "names": None, "size": None}
    assert plugin.text("typed", given) == "(1, None, None, 7)"


def test_of_a_raw_schema_a_null_is_dropped_only_where_the_schema_has_no_place_for_it(plugin: Server) -> None:
    given = dict.fromkeys(("word", "perhaps", "either", "anything", "choice", "number"))
    assert plugin.text("raw", given) == repr(dict.fromkeys(("perhaps", "either", "anything")))


def test_a_null_inside_an_argument_stays(plugin: Server) -> None:
    told = plugin.error("typed", {"count": 1, "names": ["a", None]})
    assert told.startswith("typed: argument 'names.1': null is not of type")
