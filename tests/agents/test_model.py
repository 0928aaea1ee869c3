"""The scripted model speaks each interface that agents speak, and follows its script."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.agents.clients import AGENTS, FOLDER
from tests.agents.dialects import Shown
from tests.agents.facts import FACTS, LIMITS
from tests.agents.model import DONE, Model, Step, serve_model
from tests.clients.raw_client import PATIENCE

SCRIPT = {
    "shell": Step("Bash", {"command": "pwd"}),
    "page": Step("ReadDocs", lambda shown: {"url": shown["shell"].text}),
}


@dataclass
class Spoken:
    """An interface as an agent speaks it: requests, and the tool calls in an answer."""

    path: str
    ask: Callable[[list[Any]], dict[str, Any]]  # the request after these messages
    called: Callable[[list[Any]], list[Any]]  # the messages after an answer that calls: a result, "out" and a picture


def _anthropic(events: list[Any]) -> list[Any]:
    block = events[1]["content_block"]
    assert (block["name"], events[2]["delta"]["partial_json"]) == ("mcp__toolgate__Bash", '{"command": "pwd"}')
    content = [{"type": "text", "text": "out"}, {"type": "image", "source": {}}]
    return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": block["id"], "content": content}]}]


def _responses(events: list[Any]) -> list[Any]:
    item = events[-1]["response"]["output"][0]
    assert (item["namespace"], item["name"], item["arguments"]) == ("mcp__toolgate", "Bash", '{"command": "pwd"}')
    content = [{"type": "input_text", "text": "out"}, {"type": "input_image", "image_url": "data:"}]
    return [item, {"type": "function_call_output", "call_id": item["call_id"], "output": content}]


def _chat(events: list[Any]) -> list[Any]:
    call = events[0]["choices"][0]["delta"]["tool_calls"][0]
    assert call["function"] == {"name": "toolgate_Bash", "arguments": '{"command": "pwd"}'}
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    return [{"role": "tool", "tool_call_id": call["id"], "content": "out"}, picture]


def _gemini(events: list[Any]) -> list[Any]:
    call = events[0]["candidates"][0]["content"]["parts"][0]["functionCall"]
    assert (call["name"], call["args"]) == ("mcp_toolgate_Bash", {"command": "pwd"})
    answer = {"functionResponse": {"name": call["name"], "response": {"output": "out"}}}
    return [{"role": "user", "parts": [answer, {"inlineData": {"data": ""}}]}]


def _functions(prefix: str) -> list[Any]:
    return [{"name": f"{prefix}{name}"} for name in ("Bash", "ReadDocs")]


SPOKEN = {
    "anthropic": Spoken(
        "/v1/messages", lambda messages: {"messages": messages, "tools": _functions("mcp__toolgate__")}, _anthropic
    ),
    "responses": Spoken(
        "/v1/responses",
        lambda items: {
            "input": items,
            "tools": [{"type": "namespace", "name": "mcp__toolgate", "tools": _functions("")}],
        },
        _responses,
    ),
    "chat": Spoken(
        "/v1/chat/completions",
        lambda messages: {
            "messages": messages,
            "tools": [{"type": "function", "function": one} for one in _functions("toolgate_")],
        },
        _chat,
    ),
    "gemini": Spoken(
        "/v1beta/models/m:streamGenerateContent",
        lambda contents: {
            "contents": contents,
            "tools": [{"functionDeclarations": _functions("mcp_toolgate_")}],
        },
        _gemini,
    ),
}


def post(url: str, body: Any) -> list[Any]:
    """Return the events of the model's answer."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        lines = [line.removeprefix("data: ") for line in response.read().decode().splitlines() if "data: " in line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize("spoken", SPOKEN.values(), ids=list(SPOKEN))
def test_the_model_calls_the_next_tool_and_records_what_it_was_sent(spoken: Spoken) -> None:
    model = Model(SCRIPT)
    with serve_model(model) as url:
        first = post(url + spoken.path, spoken.ask([]))
        assert first == post(url + spoken.path, spoken.ask([]))  # a repeated request gets the same answer
        second = post(url + spoken.path, spoken.ask(spoken.called(first)))
    assert "ReadDocs" in json.dumps(second)
    assert "out" in json.dumps(second)  # an argument from an earlier answer
    assert model.record.shown == {"shell": Shown("out", 1)}
    assert model.record.offered == {step: ["Bash", "ReadDocs"] for step in SCRIPT}
    assert not model.record.done


def test_the_model_ends_when_the_script_does() -> None:
    spoken = SPOKEN["chat"]
    model = Model({"shell": SCRIPT["shell"]})
    with serve_model(model) as url:
        said = post(url + spoken.path, spoken.ask(spoken.called(post(url + spoken.path, spoken.ask([])))))
    assert said[0]["choices"][0]["delta"]["content"] == DONE
    assert model.record.done


def test_deferred_tools_are_loaded_before_they_are_called() -> None:
    names = "mcp__toolgate__Bash\nmcp__toolgate__ReadDocs"
    body = {"messages": [{"role": "system", "content": names}], "tools": [{"name": "ToolSearch"}]}
    with serve_model(Model(SCRIPT)) as url:
        said = post(f"{url}/v1/messages", body)
    assert said[1]["content_block"]["name"] == "ToolSearch"
    wanted = json.loads(said[2]["delta"]["partial_json"])
    assert wanted == {"query": "select:mcp__toolgate__Bash,mcp__toolgate__ReadDocs"}


def test_a_request_without_our_tools_is_no_part_of_the_script() -> None:
    model = Model(SCRIPT)
    with serve_model(model) as url:
        said = post(f"{url}/v1/chat/completions", {"messages": [{"role": "user", "content": "a title?"}]})
        assert said[0]["choices"][0]["delta"]["content"] == "{}"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            post(f"{url}/api/telemetry", {})
    assert model.record.first == ""


def test_every_limit_is_of_an_agent_and_a_fact_there_are() -> None:
    assert {agent for agent, _ in LIMITS} <= {*AGENTS}
    assert {fact for _, fact in LIMITS} <= {*FACTS}


def test_the_lock_names_no_registry() -> None:
    lock = (FOLDER / "package-lock.json").read_text()
    assert "resolved" not in lock
    assert "://" not in lock
