"""The tool API through the real server: schemas from signatures, validation, content by revision, structured answers,
collisions, notices."""

import copy
import re
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.raw_client import REVISIONS, STATELESS, Server, eventually
from toolgate.tools import Context, prompt, resource, tool
from toolgate.tools.api.errors import CollisionError
from toolgate.tools.api.registry import Registry
from toolgate.tools.api.schema.schema import UnusableSchemaError, compile_check

Start = Callable[..., Server]


def listed(server: Server) -> dict[str, dict[str, Any]]:
    return {tool["name"]: tool for tool in server.request("tools/list")["tools"]}


# -- schemas


def test_the_signature_is_the_schema(connect: Start) -> None:
    schema = listed(connect())["typed"]["inputSchema"]
    assert schema == {
        "type": "object",
        "properties": {
            "count": {"type": "integer", "description": "how many"},
            "ratio": {"type": "number", "default": 0.5},
            "kind": {"type": "string", "enum": ["a", "b"], "default": "a"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "point": {
                "type": "object",
                "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
                "required": ["x", "y"],
            },
        },
        "required": ["count"],
        "additionalProperties": False,
    }


def test_a_raw_schema_reaches_clients_verbatim_and_is_what_is_checked(connect: Start) -> None:
    server = connect()
    schema = listed(server)["raw"]["inputSchema"]
    assert schema["$defs"] == {"word": {"type": "string", "pattern": "^[a-z]+$"}}
    assert schema["x-anything"] == {"kept": True}
    assert server.text("raw", {"word": "fine"}) == "fine"
    assert '"word"' in server.error("raw", {"word": "FINE"})


def test_values_arrive_as_the_types_they_were_declared_with(connect: Start) -> None:
    server = connect()
    arguments = {"count": 3.0, "ratio": 1, "kind": "b", "tags": ["x"], "point": {"x": 1, "y": 2}}
    assert server.text("typed", arguments) == "(3, 1, 'b', ['x'], Point(x=1, y=2))"
    assert server.text("typed", {"count": 3}) == "(3, 0.5, 'a', None, None)"


@pytest.mark.pairs
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, ['"count" is missing']),
        ({"count": "three"}, ['"count"', "integer"]),
        ({"count": 1.5}, ['"count"', "integer"]),
        ({"count": True}, ['"count"', "integer"]),
        ({"count": None}, ['"count"', "integer"]),
        ({"count": 1, "kind": "z"}, ['"kind"', '"z" is not one of "a", "b"']),
        ({"count": 1, "tags": [1]}, ["tags.0", "string"]),
        ({"count": 1, "point": {"x": 1}}, ["point", "y"]),
        ({"count": 1, "colour": "red"}, ["colour", "count, ratio, kind, tags, point"]),
        ({"count": "x" * 100_000}, ['"count"', "integer"]),
    ],
)
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-11-25", STATELESS])
def test_a_wrong_argument_is_an_error_of_the_tool_that_names_it(
    connect: Start, revision: str, arguments: dict[str, Any], words: list[str]
) -> None:
    told = connect(revision=revision).error("typed", arguments)
    assert len(told) < 2_000
    for word in words:
        assert word in told


def test_a_plain_function_runs_in_a_thread(connect: Start) -> None:
    assert connect().text("plain", {"word": "loud"}) == "LOUD"


def test_a_schema_that_reaches_outside_itself_is_refused() -> None:
    for reference in ("http://127.0.0.1/x.json", "file:///etc/passwd", "other.json"):
        with pytest.raises(UnusableSchemaError):
            compile_check({"type": "object", "properties": {"x": {"$ref": reference}}})
    assert compile_check({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}})({}) is None


def test_an_invalid_or_endless_schema_is_refused() -> None:
    with pytest.raises(UnusableSchemaError):
        compile_check({"type": "nonsense"})
    with pytest.raises(UnusableSchemaError):
        compile_check({"anyOf": [{"const": n} for n in range(30_000)]})


def test_a_function_that_can_not_be_listed_is_no_tool() -> None:
    with pytest.raises(TypeError, match="docstring"):

        @tool
        async def wordless() -> str:
            return ""

    @tool
    async def untyped(x) -> str:  # type: ignore[no-untyped-def]
        """Has no type."""
        return str(x)

    with pytest.raises(TypeError, match="no type"):
        untyped.verify()

    @tool
    async def starred(*words: str) -> str:
        """Takes any number."""
        return ""

    with pytest.raises(TypeError, match="by name"):
        starred.verify()


def test_a_copy_of_a_part_is_a_part_of_its_own() -> None:
    """As plugins make one under another name."""

    @prompt
    async def greet(language: str) -> str:
        """Greet."""
        return language

    @greet.completion("language")
    async def languages(value: str) -> list[str]:
        return [value]

    @resource("memo://{name}")
    async def memo(name: str) -> str:
        """A memo."""
        return name

    @tool
    async def ask(ctx: Context, question: str) -> str:
        """Ask."""
        return question

    for part in (greet, memo, ask):
        other = copy.copy(part)
        other.name = "other"
        other.verify()
        assert part.name != "other"
        assert other.functions == part.functions
        assert weakref.ref(other)() is other


def test_the_context_is_not_part_of_the_schema() -> None:
    @tool
    async def contextual(word: str, ctx: Context) -> str:
        """Has a context."""
        return word

    assert list(contextual.input["properties"]) == ["word"]


# -- answers


@pytest.mark.parametrize("revision", REVISIONS)
def test_each_revision_gets_the_content_it_knows(connect: Start, revision: str) -> None:
    content = connect(revision=revision).call("everything")["content"]
    kinds = [block["type"] for block in content]
    audio = "text" if revision == "2024-11-05" else "audio"
    link = "text" if revision in ("2024-11-05", "2025-03-26") else "resource_link"
    assert kinds == ["text", "image", audio, "resource", "resource", link]
    assert content[0] == {"type": "text", "text": "words", "annotations": {"audience": ["user"], "priority": 0.5}}
    assert content[1] == {"type": "image", "data": "iVBORw==", "mimeType": "image/png"}
    assert content[3]["resource"] == {"uri": "test://a", "mimeType": "text/plain", "text": "inside"}
    assert content[4]["resource"] == {"uri": "test://b", "mimeType": "application/octet-stream", "blob": "AAE="}
    assert "https://example.com/x" in str(content[5])


def test_a_return_type_is_an_output_schema(connect: Start) -> None:
    server = connect()
    assert listed(server)["where"]["outputSchema"]["required"] == ["x", "y"]
    answer = server.call("where")
    assert answer["structuredContent"] == {"x": 1, "y": 2}
    assert answer["content"] == [{"type": "text", "text": '{"x":1,"y":2}'}]


def test_structured_content_that_is_no_object_is_for_the_newest_revision_only(connect: Start) -> None:
    old = connect(revision="2025-11-25")
    assert "outputSchema" not in listed(old)["numbers"]
    assert "structuredContent" not in old.call("numbers")
    old.close()
    new = connect(revision=STATELESS)
    assert listed(new)["numbers"]["outputSchema"]["type"] == "array"
    assert new.call("numbers")["structuredContent"] == [1, 2, 3]


def test_a_tool_error_is_a_result(connect: Start) -> None:
    assert connect().error("refuse") == "no: try something else"


# -- the registry


def test_a_name_declared_twice_raises_and_names_both_places() -> None:
    @tool(name="twin")
    async def one() -> str:
        """One."""
        return ""

    with pytest.raises(CollisionError, match=r"twin.*test_api\.py.*test_api\.py"):
        Registry([one, one])


# -- what rides along


def test_a_notice_is_delivered_once_as_the_last_block(connect: Start) -> None:
    server = connect(fresh=True)
    task = server.call("BackgroundBash", {"command": "exit 3"})["structuredContent"]["task_id"]
    news: list[str] = []

    def told() -> bool:
        content = server.call("echo", {"text": "x"})["content"]
        news.extend(block["text"] for block in content[1:])
        return bool(news)

    assert eventually(told)
    assert f"background task {task}" in news[0] and "3" in news[0]
    assert len(server.call("echo", {"text": "x"})["content"]) == 1


def test_an_active_plan_refuses_tools_that_change_things(connect: Start) -> None:
    server = connect()
    server.call("PlanMode", {"action": "enter", "goal": "think"})
    for name, arguments in (
        ("BackgroundBash", {"command": "touch made"}),
        ("KillBgTask", {"task_id": 1}),
        ("change", {}),
    ):
        assert "plan" in server.error(name, arguments)
    assert "while a plan is active" in server.text("Bash", {"command": "touch made"})
    assert server.text("echo", {"text": "reading is fine"}) == "reading is fine"
    assert server.text("TaskManager", {"action": "create", "query": "", "text": "note"})
    server.call("PlanMode", {"action": "exit"})
    assert server.text("change") == "changed"


def test_a_plan_of_the_stateless_era_applies_to_the_next_request(connect: Start) -> None:
    server = connect(revision=STATELESS)
    server.call("PlanMode", {"action": "enter", "goal": "think"})
    assert "plan" in server.error("change")
    server.call("PlanMode", {"action": "reset"})
    assert server.text("change") == "changed"


def test_a_call_is_held_no_longer_than_the_hold(connect: Start) -> None:
    server = connect("--hold", "2")
    answer = server.call("Bash", {"command": "sleep 60; echo late", "timeout": 90000})
    task = int(re.findall(r"as background task (\d+)", answer["content"][0]["text"])[0])
    assert task is not None and str(task) in answer["content"][0]["text"]
    assert server.call("KillBgTask", {"task_id": task})["structuredContent"]["status"] == "killed"


def test_a_tool_that_does_not_end_by_itself_is_stopped(connect: Start) -> None:
    server = connect("--hold", "0.3")
    assert "took too long" in server.error("wait", {"seconds": 30})
    assert server.text("wait", {"seconds": 0.1}) == "waited"


def test_a_call_that_is_cancelled_while_others_are_held_leaves_them_alone(connect: Start) -> None:
    server = connect("--hold", "0.5")
    one = server.begin("tools/call", {"name": "wait", "arguments": {"seconds": 30}})
    other = server.begin("tools/call", {"name": "wait", "arguments": {"seconds": 30}})
    server.notify("notifications/cancelled", {"requestId": one})
    assert "took too long" in server.result(other)["content"][0]["text"]
    assert not [message for message in server.messages if message.get("id") == one]


COMMAND = {
    "type": "object",
    "properties": {
        "command": {"type": "string"},
        "timeout": {"type": "integer", "maximum": 9},
        "action": {"enum": ["create", "add", "list", "pending"]},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    },
    "required": ["command"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "finding"),
    [
        ({"cmd": "ls"}, 'no argument "cmd"; did you mean "command"?'),
        ({"command": "ls", "zzz": 1}, 'no argument "zzz" (arguments: command, timeout, action, either)'),
        ({}, 'argument "command" is missing'),
        ({"command": 2**80}, f'argument "command" must be a string, not {2**80}'),
        ({"command": "", "timeout": 10}, 'argument "timeout": 10 is greater than the maximum of 9'),
        (
            {"command": "", "action": "delete"},
            'argument "action": "delete" is not one of "create", "add", "list", "pending"',
        ),
        ({"command": "", "either": 1.5}, 'argument "either" has a value that is not allowed: 1.5'),
        ([], "the arguments must be an object, not []"),
    ],
)
def test_a_finding_names_the_argument_and_what_it_takes(arguments: Any, finding: str) -> None:
    assert compile_check(COMMAND)(arguments) == finding
