"""Load and call each plugin of docs/plugins.md."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.clients.raw_client import STATELESS, Server, served
from tests.docs.pages import page
from tests.docs.reader import files
from tests.interop.official_clients import THIRTEEN

PAGE = "docs/plugins.md"
CALLS: list[tuple[str, dict[str, Any], str]] = [  # tool, arguments, its text
    ("greet", {"name": "Ada"}, "Good morning, Ada!"),
    ("roll", {"count": 0}, 'argument "count"'),
    ("roll", {"sides": 7}, 'argument "sides"'),
    ("mean", {"numbers": [1, 2, 6]}, "about 3"),
    ("take", {"item": "lamp"}, "2 left"),
    ("take", {"item": "rope"}, "out of stock"),
    ("take", {"item": "oar"}, "there are lamp, rope"),
    ("survey", {"rooms": ["hall", "attic"]}, "2 rooms are fine"),
    ("keep_note", {"text": "Buy oil."}, "8 bytes are in note.md"),
    ("order", {"item": "rope"}, "order 1 is placed: 2 of rope"),
    ("where", {}, '{"alone":true}'),
    ("count_lines", {"path": "note.md"}, "1"),
    ("count_lines", {"path": "missing"}, "missing can't be read"),
    ("write_note", {"name": "oil", "text": "Buy some."}, "notes://oil"),
]


def answer_question(method: str, params: dict[str, Any]) -> dict[str, Any]:
    assert (method, params["message"]) == ("elicitation/create", "Really order rope?")
    return {"action": "accept", "content": {"amount": 2}}


def save_blocks(folder: Path) -> Path:
    for block in page(PAGE).of("python"):
        assert block.file is not None, f"{block} has no name"
        file = folder / block.file
        file.parent.mkdir(exist_ok=True)
        file.write_text(block.text)
    return folder / "my-plugins"


def call_text(server: Server, tool: str, arguments: dict[str, Any]) -> str:
    return str(server.call(tool, arguments, progressToken=tool)["content"][0]["text"])


def test_each_plugin_of_the_page_does_what_it_says(tmp_path: Path) -> None:
    folder = save_blocks(tmp_path)
    asks: dict[str, Any] = {"capabilities": {"elicitation": {}}, "answer": answer_question}
    options = ("-p", str(folder), "--allow-private", "127.0.0.1")
    with served(tmp_path, *options, **asks) as server, files(tmp_path) as web:
        listed = [tool["name"] for tool in server.request("tools/list")["tools"]]
        assert {*listed} - {*THIRTEEN} == {*(tool for tool, _, _ in CALLS), "page_size"}
        for tool, arguments, text in CALLS:
            assert text in call_text(server, tool, arguments), (tool, arguments)
        assert "bytes" in call_text(server, "page_size", {"url": f"{web}/my-plugins/greet.py"})
        reported = [note["message"] for note in server.notes("notifications/progress")]
        own = [text for text in reported if not text.startswith("running for")]  # a slow call reports itself
        assert own == ["the hall is fine", "the attic is fine"]
        thrown = server.call("roll", {"count": 2, "seed": 1})
        assert thrown["structuredContent"] == json.loads(thrown["content"][0]["text"])
        assert server.call("mean", {"numbers": [1, 2]})["structuredContent"] == {"mean": 1.5}
        got = server.request("prompts/get", {"name": "explain", "arguments": {"topic": "tides", "reader": "child"}})
        assert [message["role"] for message in got["messages"]] == ["user", "assistant"]
        ref = {"type": "ref/prompt", "name": "explain"}
        asked = {"ref": ref, "argument": {"name": "topic", "value": "ti"}}
        assert server.request("completion/complete", asked)["completion"]["values"] == ["tides"]
        assert server.request("resources/read", {"uri": "notes://oil"})["contents"][0]["text"] == "Buy some."
        assert server.request("resources/read", {"uri": "notes-count://now"})["contents"][0]["text"] == "2"
        uris = [one["uri"] for one in server.request("resources/list")["resources"]]
        assert "notes://oil" in uris
        assert "plugin" not in server.log(), server.log()
    with served(tmp_path, *options, revision=STATELESS, **asks) as server:
        order = {"name": "order", "arguments": {"item": "rope"}}
        asked = server.request("tools/call", order)
        ((key, question),) = asked["inputRequests"].items()
        answers = {key: answer_question(question["method"], question["params"])}
        again = {"inputResponses": answers, "requestState": asked["requestState"]}
        got = server.request("tools/call", {**order, **again})
        assert got["content"][0]["text"] == "order 1 is placed: 2 of rope"  # though it ran twice


def loaded(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tests_of_the_page_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_blocks(tmp_path)
    monkeypatch.syspath_prepend(folder)
    tests = loaded(tmp_path / "tests" / "test_dice.py")
    run = [check() for name, check in vars(tests).items() if name.startswith("test_")]
    assert len(run) == 2
    del sys.modules["dice"]
