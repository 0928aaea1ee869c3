"""Arguments as loose clients send them: texts for other values, JSON for a text, and arguments that clients add."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import STATELESS, Refusal, Server
from tests.clients.raw_http_client import Site
from tests.needed_features import require
from tests.servers.isolated_plugins import EACH_WAY
from tests.transports.test_streamable_http import modern
from toolgate.server.protocol import message_limits
from toolgate.tools.api.schema.reader import CHARACTERS, MAX_WORK, SchemaReader
from toolgate.tools.api.text import json_text

pytestmark = pytest.mark.pairs

Start = Callable[..., Server]
ACCEPT = {"action": "accept", "content": {}}

PLUGIN = '''
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from toolgate.tools import tool

NODE = {"type": "object", "properties": {"n": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}
RAW = {
    "type": "object",
    "$defs": {"count": {"type": "integer", "minimum": 1}, "node": NODE},
    "properties": {
        "either": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
        "numeric": {"oneOf": [{"type": "integer"}, {"type": "number", "exclusiveMaximum": 0.9}]},
        "text_too": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "short": {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]},
        "both": {"allOf": [{"type": ["integer", "string"]}, {"type": "integer"}]},
        "count": {"$ref": "#/$defs/count"},
        "nullable": {"type": ["integer", "null"]},
        "level": {"enum": [1, 2, True]},
        "fixed": {"const": 7},
        "grid": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": False},
        "lists": {"anyOf": [
            {"type": "array", "items": {"type": "integer"}}, {"type": "array", "items": {"type": "string"}},
        ]},
        "tree": {"$ref": "#/$defs/node"},
        "sizes": {"type": "object", "additionalProperties": {"type": "integer"}},
        "shape": {"oneOf": [
            {"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}},
             "required": ["kind", "r"]},
            {"type": "object", "properties": {"kind": {"const": "square"}, "a": {"type": "integer"}},
             "required": ["kind", "a"]},
        ]},
        "payload": {"type": "string", "contentMediaType": "application/json"},
        "data_json": {"type": "string"},
        "note": {"type": "string", "description": "the filter, as JSON"},
        "word": {"type": "string"},
        "anything": {},
        "a/b c~d": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    },
    "additionalProperties": False,
}


@tool(read_only=True, input=RAW)
async def raw(**given: Any) -> str:
    """Say which arguments came."""
    return repr(given)


@dataclass
class Point:
    x: int
    y: float = 0.5


@tool(read_only=True)
async def typed(
    n: int = 0,
    ratio: float = 0.5,
    flag: bool = False,
    tags: list[str] | None = None,
    point: Point | None = None,
    points: list[Point] | None = None,
    level: Literal[1, 2] = 1,
    either: int | str | None = None,
    name: str = "",
) -> str:
    """Say what each argument is."""
    return repr((n, ratio, flag, tags, point, points, level, either, name))


@tool(read_only=True, input={"type": "object", "properties": {"a": {"type": "integer"}}})
async def open_schema(a: int, b: int = 2) -> str:
    """Take less than the schema allows."""
    return repr((a, b))


@tool(read_only=True, input={"type": "object", "properties": {"a": {}, "c": {}, "sessionId": {"type": "integer"}}})
async def wide(a: str = "", sessionId: int = 0) -> str:
    """Take two of three."""
    return repr((a, sessionId))
'''


@pytest.fixture(params=EACH_WAY)
def plugin(request: pytest.FixtureRequest, start: Start, tmp_path: Path) -> Server:
    return start(*plugin_options(tmp_path), *request.param)


def plugin_options(folder: Path) -> tuple[str, str]:
    (folder / "plugins").mkdir()
    (folder / "plugins" / "loose.py").write_text(PLUGIN)
    return "-p", str(folder / "plugins")


SAME: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("typed", {"n": "3"}, {"n": 3}),
    ("typed", {"n": "-3"}, {"n": -3}),
    ("typed", {"n": "-0"}, {"n": 0}),
    ("typed", {"n": "1.0"}, {"n": 1}),
    ("typed", {"n": "12345678901234567890"}, {"n": 12345678901234567890}),
    ("typed", {"ratio": "0.25"}, {"ratio": 0.25}),
    ("typed", {"ratio": "1e-3"}, {"ratio": 0.001}),
    ("typed", {"ratio": "2"}, {"ratio": 2}),
    ("typed", {"flag": "true"}, {"flag": True}),
    ("typed", {"flag": "false"}, {"flag": False}),
    ("typed", {"tags": '["a", "1"]'}, {"tags": ["a", "1"]}),
    ("typed", {"tags": ' [\n"a"\n] '}, {"tags": ["a"]}),
    ("typed", {"point": '{"x": 1}'}, {"point": {"x": 1}}),
    ("typed", {"point": {"x": "1", "y": "2.5"}}, {"point": {"x": 1, "y": 2.5}}),
    ("typed", {"point": '{"x": "1"}'}, {"point": {"x": 1}}),
    ("typed", {"points": [{"x": "1"}, '{"x": 2}']}, {"points": [{"x": 1}, {"x": 2}]}),
    ("typed", {"points": '[{"x": 1}, {"x": 2.0}]'}, {"points": [{"x": 1}, {"x": 2}]}),
    ("typed", {"level": "2"}, {"level": 2}),
    ("typed", {"either": "1"}, {"either": "1"}),
    ("typed", {"name": "true"}, {"name": "true"}),
    ("typed", {"name": '{"a": 1}'}, {"name": '{"a": 1}'}),
    ("typed", {"n": "null", "flag": "null", "tags": "null"}, {}),
    ("typed", {"name": "null"}, {"name": "null"}),
    ("raw", {"either": "1"}, {"either": 1}),
    ("raw", {"either": "true"}, {"either": True}),
    ("raw", {"numeric": "1.0"}, {"numeric": 1}),
    ("raw", {"numeric": "0.5"}, {"numeric": 0.5}),
    ("raw", {"text_too": "1"}, {"text_too": "1"}),
    ("raw", {"short": "1"}, {"short": "1"}),
    ("raw", {"short": "12"}, {"short": 12}),
    ("raw", {"both": "4"}, {"both": 4}),
    ("raw", {"count": "5"}, {"count": 5}),
    ("raw", {"nullable": "null"}, {"nullable": None}),
    ("raw", {"nullable": "3"}, {"nullable": 3}),
    ("raw", {"level": "2"}, {"level": 2}),
    ("raw", {"level": "true"}, {"level": True}),
    ("raw", {"fixed": "7"}, {"fixed": 7}),
    ("raw", {"grid": "[[1, 2.5], []]"}, {"grid": [[1, 2.5], []]}),
    ("raw", {"grid": ["[1]", ["2"]]}, {"grid": [[1], [2]]}),
    ("raw", {"pair": ["1", "true"]}, {"pair": [1, True]}),
    ("raw", {"lists": '["1"]'}, {"lists": ["1"]}),
    ("raw", {"lists": "[1]"}, {"lists": [1]}),
    ("raw", {"tree": '{"n": "1", "next": {"n": 2, "next": "{}"}}'}, {"tree": {"n": 1, "next": {"n": 2, "next": {}}}}),
    ("raw", {"sizes": {"a": "1", "b": 2}}, {"sizes": {"a": 1, "b": 2}}),
    ("raw", {"shape": '{"kind": "circle", "r": 1.5}'}, {"shape": {"kind": "circle", "r": 1.5}}),
    ("raw", {"shape": {"kind": "square", "a": "2"}}, {"shape": {"kind": "square", "a": 2}}),
    ("raw", {"payload": {"a": [1, "é"]}}, {"payload": '{"a": [1, "é"]}'}),
    ("raw", {"data_json": [1]}, {"data_json": "[1]"}),
    ("raw", {"note": {}}, {"note": "{}"}),
    ("raw", {"anything": "1"}, {"anything": "1"}),
    ("raw", {"a/b c~d": "1"}, {"a/b c~d": 1}),
]


def test_what_reads_as_one_value_of_the_declared_type_counts_as_that_value(plugin: Server) -> None:
    for tool, loose, right in SAME:
        assert plugin.text(tool, loose) == plugin.text(tool, right), loose


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *(
        ("typed", {"n": text}, 'argument "n" must be an integer, not ')
        for text in ("", "1e3", " 1", "1 ", "+1", "01", "1.5", "1.", ".5", "0x10", "1_000", "1,000", "١", "yes", "true")
    ),
    *(("typed", {"n": text}, 'argument "n" must be an integer, not ') for text in ("[1]", '"1"', "9" * 5_000)),
    *(
        ("typed", {"ratio": text}, 'argument "ratio" must be a number, not ')
        for text in ("NaN", "Infinity", "-inf", "1e400", " 0.5", "½")
    ),
    *(
        ("typed", {"flag": value}, 'argument "flag" must be true or false, not ')
        for value in ("yes", "1", "on", "True", "", " true", 1, 0)
    ),
    *(
        ("typed", {"tags": text}, 'argument "tags" must be a list, not ')
        for text in ("a", "a, b", "[", "['a']", "[NaN]", '["a"] ["b"]', '"[]"', '{"a": 1}', "[" * 5_000)
    ),
    ("typed", {"point": '{"x": 1, "x": 2}'}, 'argument "point" must be an object, not '),
    ("typed", {"point": "[]"}, 'argument "point" must be an object, not '),
    ("typed", {"tags": '["\\ud800"]'}, 'argument "tags" must be a list, not '),
    ("typed", {"n": "3", "tags": '[1, "b"]'}, 'argument "tags.0" must be a string, not 1'),
    ("typed", {"level": "3"}, "is not one of 1, 2"),
    ("typed", {"name": 5}, 'argument "name" must be a string, not 5'),
    ("typed", {"name": {"a": 1}}, 'argument "name" must be a string, not {"a": 1}'),
    ("raw", {"count": "0"}, 'argument "count": 0 is less than the minimum of 1'),
    ("raw", {"either": "yes"}, 'argument "either" has a value that is not allowed'),
    ("raw", {"fixed": "8"}, 'argument "fixed"'),
    ("raw", {"data_json": 5}, 'argument "data_json" must be a string, not 5'),
    ("raw", {"word": ["a"]}, 'argument "word" must be a string, not ["a"]'),
]


def test_nothing_is_guessed(plugin: Server) -> None:
    for tool, arguments, finding in REFUSED:
        assert finding in plugin.error(tool, arguments), arguments


@pytest.mark.parametrize(
    ("tool", "loose", "right"),
    [
        ("ReadBgOutput", {"task_id": "999"}, {"task_id": 999}),
        ("KillBgTask", {"task_id": "999.0"}, {"task_id": 999}),
        ("SetCallback", {"action": "cancel", "callback_id": "7"}, {"action": "cancel", "callback_id": 7}),
        ("Bash", {"command": "echo hi", "timeout": "5000"}, {"command": "echo hi", "timeout": 5000}),
        ("Bash", {"command": "echo hi", "timeout": "0"}, {"command": "echo hi", "timeout": 0}),
        (
            "TaskManager",
            {"action": "switch", "query": "", "task_id": "9"},
            {"action": "switch", "query": "", "task_id": 9},
        ),
        (
            "AskUserQuestion",
            {"questions_json": [{"question": "Which?", "options": ["a", "b"]}]},
            {"questions_json": '[{"question": "Which?", "options": ["a", "b"]}]'},
        ),
    ],
)
def test_the_thirteen_take_it_on_every_transport(
    connect: Start, tool: str, loose: dict[str, Any], right: dict[str, Any]
) -> None:
    server = connect()
    wanted = server.call(tool, right)
    assert server.call(tool, loose) == wanted


def test_texts_inside_the_questions_are_read_too(connect: Start) -> None:
    question = {"question": "Which?", "options": '["a", "b"]', "multiSelect": "true"}
    said = connect().text("AskUserQuestion", {"questions_json": {"questions": json.dumps([question])}})
    assert "Which? (several may be chosen)" in said and "- b" in said


def test_a_value_that_fits_is_not_changed_even_if_it_is_large() -> None:
    numbers = list(range(100_000))
    schema = {"type": "object", "properties": {"n": {"type": "array", "items": {"type": "integer"}}}}
    given = {"n": numbers}
    assert SchemaReader(schema).read(given, deep=True) is given


def test_texts_among_more_values_than_a_reading_visits_stay_texts() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "array", "items": {"type": "integer"}}}}
    reader = SchemaReader(schema)
    assert reader.read({"n": ["1"] * (MAX_WORK - 10)}, deep=True) == {"n": [1] * (MAX_WORK - 10)}
    given = {"n": ["1"] * MAX_WORK}
    assert reader.read(given, deep=True) is given


def test_alternatives_that_double_at_each_level_cost_no_more_than_a_reading_may() -> None:
    parts = [{"type": "array", "items": {"$ref": "#/$defs/deep"}} for _ in range(3)]
    schema = {"$defs": {"deep": {"anyOf": [*parts, {"type": "integer"}]}}, "$ref": "#/$defs/deep"}
    value: Any = "x"
    for _ in range(60):
        value = [value]
    assert SchemaReader(schema).read(value, deep=True) is value


def test_json_of_more_than_a_mebibyte_stays_a_text() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "array"}}}
    fits, large = (json.dumps(["a" * size]) for size in (2**20, MAX_WORK * CHARACTERS))
    assert SchemaReader(schema).read({"n": fits}, deep=False) == {"n": ["a" * 2**20]}
    assert SchemaReader(schema).read({"n": large}, deep=False) == {"n": large}


@pytest.mark.parametrize(
    ("name", "part", "holds"),
    [
        ("json", {}, True),
        ("data_json", {}, True),
        ("json_text", {}, True),
        ("jsonBody", {}, True),
        ("bodyJson", {}, True),
        ("jsonl", {}, False),
        ("jsonify", {}, False),
        ("data", {}, False),
        ("data", {"description": "the query, as JSON"}, True),
        ("data", {"description": "a json object"}, True),
        ("data", {"description": "one line of JSONL"}, False),
        ("data", {"contentMediaType": "application/geo+json"}, True),
        ("data", {"contentMediaType": "text/plain"}, False),
        ("data", {"format": "json-string"}, True),
    ],
)
def test_an_object_becomes_a_text_where_that_holds_json(name: str, part: dict[str, Any], holds: bool) -> None:
    schema = {"type": "object", "properties": {name: {"anyOf": [{"type": "string"}, {"type": "null"}], **part}}}
    assert SchemaReader(schema).read({name: {"a": 1}}, deep=False) == {name: '{"a": 1}' if holds else {"a": 1}}


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}])
def test_a_reference_to_itself_ends(schema: dict[str, Any]) -> None:
    assert SchemaReader(schema).read("1", deep=True) == "1"


def test_json_within_an_argument_has_the_limits_of_a_message() -> None:
    assert (json_text.MAX_STRUCTURE, json_text.OTHERS) == (message_limits.MAX_STRUCTURE, message_limits.OTHERS)
    fits, large = (f"[{'1,' * count}1]" for count in (json_text.MAX_STRUCTURE // 2 - 2, json_text.MAX_STRUCTURE))
    assert len(json_text.decode_argument(fits)) == json_text.MAX_STRUCTURE // 2 - 1
    with pytest.raises(json_text.JsonError, match="take more than"):
        json_text.decode_argument(large)


# -- all that look at a call see the same


def test_the_audit_log_sees_the_converted_values(start: Start) -> None:
    require("telemetry")
    server = start("--audit", "full")
    for value in ("999", 999):
        server.error(
            "ReadBgOutput", {"task_id": value, "toolCallId": "call_1"} if value == "999" else {"task_id": value}
        )
    server.close()
    lines = [json.loads(line) for line in (server.state / "audit" / "audit.jsonl").read_text().splitlines()]
    first, second = (line for line in lines if line.get("tool") == "ReadBgOutput")
    assert first["arguments"] == second["arguments"] == {"task_id": 999}
    assert first["digest"] == second["digest"]


@pytest.mark.parametrize("revision", ["2025-11-25", STATELESS])
def test_the_person_who_approves_is_shown_the_converted_values(start: Start, revision: str) -> None:
    server = start(
        "--approve", "KillBgTask", revision=revision, capabilities={"elicitation": {}}, answer=lambda *_: ACCEPT
    )
    result = server.call("KillBgTask", {"task_id": "999"})
    if revision == STATELESS:
        ((key, question),) = result["inputRequests"].items()
        retry = {"inputResponses": {key: ACCEPT}, "requestState": result["requestState"]}
        # the same call: another client library may send the number
        result = server.request("tools/call", {"name": "KillBgTask", "arguments": {"task_id": 999}, **retry})
    else:
        (question,) = [message for message in server.messages if message.get("method") == "elicitation/create"]
    assert question["params"]["message"] == "Run KillBgTask with these arguments?\n\ntask_id: 999"
    assert "no background task 999" in result["content"][0]["text"]


def test_a_rule_sees_the_text_that_an_object_became(start: Start, tmp_path: Path) -> None:
    server = start(*plugin_options(tmp_path), "--deny", "raw", "--allow", "typed")
    assert "refused here by the rule" in server.error("raw", {"payload": {}})


@pytest.mark.parametrize(
    ("arguments", "headers", "code"),
    [
        ({"limit": "42"}, {"Limit": "42"}, None),
        ({"limit": "42.0"}, {"Limit": "42"}, None),
        ({"limit": "42"}, {"Limit": "43"}, -32020),
        ({"limit": "42"}, {}, -32020),
        ({"dry": "true"}, {"Dry": "true"}, None),
        ({"dry": "true"}, {"Dry": "false"}, -32020),
        ({"place": '{"town": "x"}'}, {"Town": "x"}, None),
        ({"place": '{"town": "x"}'}, {}, -32020),
        ({"region": "42"}, {"Region": "42"}, None),
    ],
)
def test_a_mirrored_header_is_compared_with_the_converted_value(
    shared: Site, arguments: dict[str, Any], headers: dict[str, str], code: int | None
) -> None:
    body, told = modern("tools/call", {"name": "mirror", "arguments": arguments})
    params = {f"Mcp-Param-{name}": value for name, value in headers.items()}
    _, _, answer = shared.ask("POST", "/mcp", body, **told, **params)
    assert answer.get("error", {}).get("code") == code, answer


def test_the_filter_of_an_event_is_read_in_the_same_way(connect: Start) -> None:
    require("events")
    server = connect()
    params = {"name": "command.ended", "cursor": None}
    for value in ("5", 5):
        assert "cursor" in server.request("events/poll", {**params, "arguments": {"id": value}})
    with pytest.raises(Refusal, match="must be an integer, not"):
        server.request("events/poll", {**params, "arguments": {"id": "five"}})


PROMPT = '''
from toolgate.tools import prompt

@prompt()
def listed(names: list[str], sizes: dict[str, int] | None = None, count: int = 1) -> str:
    """Say what came."""
    return repr((names, sizes, count))
'''


def test_a_prompts_list_and_object_come_as_json(start: Start, tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "listed.py").write_text(PROMPT)
    server = start("-p", str(tmp_path / "prompts"))
    given = {"names": '["a"]', "sizes": '{"b": 2}', "count": "3"}
    got = server.request("prompts/get", {"name": "listed", "arguments": given})
    assert got["messages"][0]["content"]["text"] == "(['a'], {'b': 2}, 3)"
    for wrong in ("a", "[1]", '["a"', "{}"):
        with pytest.raises(Refusal) as refusal:
            server.request("prompts/get", {"name": "listed", "arguments": {"names": wrong}})
        assert refusal.value.code == -32602


# -- arguments that clients add


ADDED: list[dict[str, Any]] = [
    {"description": "Say hello"},
    {"explanation": "to see it"},
    {"run_in_background": False},
    {"run_in_background": "false"},
    {"run_in_background": None},
    {"is_background": False},
    {"dangerouslyDisableSandbox": False},
    {"toolCallId": "call_1"},
    {"sessionId": "s", "action": "sendMessage", "chatInput": "hi", "toolCallId": "call_1", "tool": "Bash"},
    {"action": "sendMessage"},
    {"requestId": "7"},
    {"task_progress": "- [ ] step"},
    {"security_context": {"agent_fingerprint": {}}},
    {"wait_for_previous": True},
    {"waitForPreviousTools": False},
    {"_meta": {"correlationId": "x"}},
    {"_sessionID": "s"},
    {"description": "Say hello", "timeout": "5000", "toolCallId": "call_1"},
]


def test_what_clients_are_known_to_add_is_ignored(connect: Start) -> None:
    server = connect()
    for added in ADDED:
        assert server.text("Bash", {"command": "echo hi", **added}) == "hi\n", added
    assert server.text("ListBgTasks", {"toolCallId": "call_1"}) == server.text("ListBgTasks")
    status = {"action": "status"}
    assert server.text("PlanMode", {**status, "sessionId": "s", "tool": "x"}) == server.text("PlanMode", status)


@pytest.mark.parametrize(
    ("arguments", "finding"),
    [
        (
            {"run_in_background": True},
            'no argument "run_in_background": to start a command in the background, call Back',
        ),
        (
            {"run_in_background": "true"},
            'no argument "run_in_background": to start a command in the background, call Ba',
        ),
        ({"run_in_background": "yes"}, 'no argument "run_in_background": to start a command'),
        ({"is_background": True, "description": "x"}, 'no argument "is_background": to start a command'),
        ({"isBackground": 1}, 'no argument "isBackground": to start a command'),
        ({"dangerouslyDisableSandbox": True}, 'no argument "dangerouslyDisableSandbox": leave it out, as the operator'),
        ({"timeout_ms": 5}, 'no argument "timeout_ms"; did you mean "timeout"?'),
        ({"workdir": "/tmp"}, 'no argument "workdir" (arguments: command, timeout)'),
        ({"action": "delete"}, 'no argument "action"'),
        ({"tool": "Bash"}, 'no argument "tool"'),
        ({"_command": "ls"}, 'no argument "_command"; did you mean "command"?'),
        ({"colour": "red", "toolCallId": "call_1"}, 'no argument "colour"'),
    ],
)
def test_what_changes_the_meaning_and_what_is_unknown_is_never_ignored(
    connect: Start, arguments: dict[str, Any], finding: str
) -> None:
    assert finding in connect().error("Bash", {"command": "echo hi", **arguments})


def test_a_command_of_the_background_can_be_marked_so_again(connect: Start) -> None:
    server = connect(fresh=True)
    marked = {"command": "true", "description": "d", "run_in_background": True}
    assert "background task 1 started" in server.text("BackgroundBash", marked)
    told = server.error("BackgroundBash", {**marked, "run_in_background": False})
    assert 'no argument "run_in_background": to wait for the command, call Bash' in told


def test_a_description_belongs_to_commands_alone(connect: Start) -> None:
    assert 'no argument "description"' in connect().error("ReadImage", {"file_path": "/x", "description": "d"})


def test_each_client_and_name_is_logged_once(start: Start) -> None:
    server = start()
    for _ in range(3):
        server.text("Bash", {"command": "true", "description": "secret words", "toolCallId": "call_1"})
    server.text("ListBgTasks", {"toolCallId": "call_2"})
    server.close()
    for name in ("description", "toolCallId"):
        assert server.log().count(f'tests adds the argument "{name}" to its calls: it is ignored') == 1
    assert "secret words" not in server.log()


# -- raw schemas and their functions


def test_a_raw_schema_that_allows_more_than_its_function_takes_is_no_internal_error(plugin: Server) -> None:
    assert plugin.text("open_schema", {"a": "1", "toolCallId": "call_1"}) == "(1, 2)"
    assert plugin.text("open_schema", {"a": 1, "b": 5}) == "(1, 5)"
    assert plugin.error("open_schema", {"a": 1, "bb": 5}) == 'open_schema: no argument "bb"; did you mean "b"?'
    assert plugin.error("open_schema", {}) == 'open_schema: argument "a" is missing'
    assert plugin.error("wide", {"a": "x", "c": 1}) == 'wide: no argument "c" (arguments: a, sessionId)'
    assert plugin.text("wide", {"a": "x", "sessionId": "3", "chatInput": "hi"}) == "('x', 3)"


def test_such_a_schema_is_logged_when_it_is_loaded(plugin: Server) -> None:
    plugin.text("wide")
    plugin.close()
    assert "wide: its input schema has 'c', which its function does not take" in plugin.log()
    assert "open_schema: its function needs 'a', which its input schema does not require" in plugin.log()
