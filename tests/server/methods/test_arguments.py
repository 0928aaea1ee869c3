"""Arguments without meaning: null for an optional one, and control characters in text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import Server
from tests.clients.raw_http_client import Site, spoken
from tests.servers.isolated_plugins import EACH_WAY

pytestmark = pytest.mark.pairs

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
        "again": {"$ref": "#/properties/number"},
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
    assert told.startswith('TaskManager: argument "query" must be a string, not null')


def test_a_null_for_an_argument_that_does_not_exist_is_refused(connect: Start) -> None:
    assert 'no argument "colour"' in connect().error("TaskManager", {"action": "list", "query": "", "colour": None})


WHOLE = '''
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, TypedDict

import msgspec

from toolgate.tools import Context, tool


@dataclass
class Point:
    x: int
    y: int | None = None
    weight: float = 1.5


class Path(msgspec.Struct):
    points: list[Point]
    by_name: dict[str, Point] = {}
    level: Literal[1, 2] = 1
    parent: "Path | None" = None


class Grade(IntEnum):
    GOOD = 1


class Form(TypedDict):
    sizes: list[int]


@tool(read_only=True)
async def whole(
    path: Path | None = None,
    points: list[Point] | None = None,
    sizes: list[int] | None = None,
    form: Form | None = None,
    pair: tuple[int, str] | None = None,
    level: Literal[1, 2] = 2,
    grade: Grade | None = None,
    either: int | str | None = None,
    number: int | float = 0,
    ratio: float = 0.0,
    anything: Any = None,
) -> str:
    """Say what each argument is."""
    given = (path, points, sizes, form, pair, level, grade, either, number, ratio, anything)
    return repr([each for each in given if each not in (None, 0)])


@tool(read_only=True)
async def ask(ctx: Context) -> str:
    """Ask for numbers."""
    properties = {"age": {"type": "integer"}, "ratio": {"type": "number"}}
    answer = await ctx.elicit("How many?", {"type": "object", "properties": properties})
    return repr(dict(answer.content))
'''


@pytest.mark.parametrize("options", EACH_WAY)
def test_a_whole_number_is_an_integer_at_each_place_of_an_argument(
    start: Start, tmp_path: Path, options: tuple[str, ...]
) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "whole.py").write_text(WHOLE)
    server = start("-p", str(folder), *options)
    point = "Point(x=2, y=None, weight=1.5)"
    for arguments, said in (
        ({"points": [{"x": 2.0}]}, f"[{point}], 2"),
        ({"points": [{"x": 2.0, "y": 3.0, "weight": 2}]}, "[Point(x=2, y=3, weight=2.0)], 2"),
        (
            {"path": {"points": [{"x": 2.0}], "level": 2.0}},
            f"Path(points=[{point}], by_name={{}}, level=2, parent=None), 2",
        ),
        (
            {"path": {"points": [], "by_name": {"a": {"x": 2.0}}, "parent": {"points": []}}},
            f"Path(points=[], by_name={{'a': {point}}}, level=1, "
            "parent=Path(points=[], by_name={}, level=1, parent=None)), 2",
        ),
        ({"sizes": [1.0, 2, 3e0]}, "[1, 2, 3], 2"),
        ({"form": {"sizes": [1.0]}}, "{'sizes': [1]}, 2"),
        ({"pair": [1.0, "a"]}, "(1, 'a'), 2"),
        ({"level": 1.0}, "1"),
        ({"either": 1.0}, "2, 1"),
        ({"either": "1.0"}, "2, '1.0'"),
        ({"number": 1.5}, "2, 1.5"),
        ({"ratio": 2.0, "anything": 2.0}, "2, 2.0, 2.0"),
    ):
        assert server.text("whole", arguments) == f"[{said}]", arguments
    for arguments in ({"points": [{"x": 2.5}]}, {"sizes": [1.5]}, {"level": 1.5}, {"either": 1.5}):
        assert server.error("whole", arguments)


def test_a_whole_number_is_an_integer_in_the_answer_of_a_form(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "whole.py").write_text(WHOLE)
    content = {"action": "accept", "content": {"age": 30.0, "ratio": 2.0}}
    server = start("-p", str(folder), capabilities={"elicitation": {}}, answer=lambda *_: content)
    assert server.text("ask") == "{'age': 30, 'ratio': 2.0}"


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
    given = dict.fromkeys(("word", "perhaps", "either", "anything", "choice", "number", "again"))
    assert plugin.text("raw", given) == repr(dict.fromkeys(("perhaps", "either", "anything")))


def test_a_null_inside_an_argument_stays(plugin: Server) -> None:
    told = plugin.error("typed", {"count": 1, "names": ["a", None]})
    assert told.startswith('typed: argument "names.1" must be a string, not null')


# -- control characters


@pytest.mark.parametrize("letter", ["\0", "\x1b", "\x7f", "\x9b"])
@pytest.mark.parametrize(
    ("tool", "arguments", "name"),
    [
        ("TaskManager", {"action": "create", "query": "", "text": "a@b"}, "text"),
        ("TaskManager", {"action": "add", "query": "", "text": "a@b"}, "text"),
        ("TaskManager", {"action": "list", "query": "a@b"}, "query"),
        ("PlanMode", {"action": "enter", "goal": "a@b"}, "goal"),
        ("PlanMode", {"action": "enter", "goal": "a", "plan_file": "a@b.md"}, "plan_file"),
        ("InvokeSkill", {"skill_name": "a@b"}, "skill_name"),
        ("InvokeSkill", {"skill_name": "toolgate-tools", "arguments": "a@b"}, "arguments"),
        ("SetCallback", {"action": "set", "message": "a@b", "delay_seconds": 5}, "message"),
    ],
)
def test_a_control_character_in_a_text_is_refused_with_the_argument_it_is_in(
    shared: Site, tool: str, arguments: dict[str, Any], name: str, letter: str
) -> None:
    given = {key: value.replace("@", letter) if key == name else value for key, value in arguments.items()}
    with spoken(shared, "http") as client:
        told = client.error(tool, given)
        assert told == f"{name!r} holds the control character U+{ord(letter):04X}: remove it"


def test_a_control_character_in_a_question_is_refused_with_its_place(connect: Start) -> None:
    asked = json.dumps([{"question": "a?", "options": ["a", {"label": "b", "description": "c\x1b[0m"}]}])
    told = connect().error("AskUserQuestion", {"questions_json": asked})
    assert told == ("question 1, option 2: 'description' holds the control character U+001B: remove it")


def test_lines_and_tabs_are_text(connect: Start) -> None:
    given = {"action": "create", "query": "", "text": "first\r\n\tsecond é 世"}
    assert "Task 1 created" in connect(fresh=True).text("TaskManager", given)


@pytest.mark.parametrize(
    ("tool", "name"), [("Bash", "command"), ("BackgroundBash", "command"), ("ReadImage", "file_path")]
)
def test_a_nul_in_a_command_or_a_path_is_refused(connect: Start, tool: str, name: str) -> None:
    assert "holds a NUL character" in connect().error(tool, {name: "/tmp/a\0b"})
