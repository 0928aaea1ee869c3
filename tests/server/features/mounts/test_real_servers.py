"""Servers that nobody here wrote: what they list and return through a mount equals what they give alone, field by
field, but for the names."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import STATELESS, Refusal, Server, eventually, served
from tests.interop.node import node, package
from tests.server.features.mounts.mounted import CAPABILITIES, answer, wait_listed, write_config

FAST = Path(__file__).with_name("sdk_server.py")
ORIGINAL, SERVER = "toolgate/original", "io.modelcontextprotocol/serverInfo"
Calls = Sequence[tuple[str, dict[str, Any]]]

EVERYTHING: Calls = (
    ("echo", {"message": "é"}),
    ("echo", {}),  # its own refusal
    ("get-sum", {"a": 1, "b": 2.5}),
    ("get-annotated-message", {"messageType": "error", "includeImage": True}),
    ("get-resource-links", {"count": 2}),
    ("get-resource-reference", {"resourceType": "Text", "resourceId": 3}),
    ("get-structured-content", {"location": "New York"}),
    ("get-tiny-image", {}),
    ("trigger-elicitation-request", {}),
    ("trigger-sampling-request", {"prompt": "x", "maxTokens": 5}),
    ("get-roots-list", {}),
)
MEMORY: Calls = (
    ("create_entities", {"entities": [{"name": "a", "entityType": "t", "observations": ["o"]}]}),
    ("read_graph", {}),
    ("search_nodes", {"query": "a"}),
    ("open_nodes", {"names": ["a", "b"]}),
    ("delete_entities", {"entityNames": ["a"]}),
)
THINKING: Calls = (
    ("sequentialthinking", {"thought": "one", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}),
    ("sequentialthinking", {"thought": 1}),
)
FILES: Calls = (
    ("write_file", {"path": "{folder}/a.txt", "content": "one\n"}),
    ("read_text_file", {"path": "{folder}/a.txt"}),
    ("list_directory", {"path": "{folder}"}),
    ("read_text_file", {"path": "/etc/passwd"}),
    ("list_allowed_directories", {}),
)
SDK: Calls = (("add", {"a": 1, "b": 2}), ("weather", {"city": "Oslo"}), ("fail", {}), ("add", {"a": "x"}))
SERVERS: dict[str, tuple[str, Calls]] = {  # npm package, and what to call
    "everything": ("server-everything", EVERYTHING),
    "memory": ("server-memory", MEMORY),
    "thinking": ("server-sequential-thinking", THINKING),
    "files": ("server-filesystem", FILES),
    "sdk": ("", SDK),
}


def _find_command(name: str, folder: Path) -> list[str]:
    npm = SERVERS[name][0]
    if not npm:
        return [sys.executable, str(FAST)]
    words = [str(folder)] if name == "files" else []
    return [node(), str(package(f"@modelcontextprotocol/{npm}") / "dist/index.js"), *words]


@pytest.fixture(params=list(SERVERS))
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Yield a real server alone, the same one mounted, and what to call."""
    folder = tmp_path / "folder"
    folder.mkdir()
    calls = json.loads(json.dumps(SERVERS[request.param][1]).replace("{folder}", str(folder)))
    command, *args = _find_command(request.param, folder)
    env = {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    table = (
        f"[mounts.far]\ncommand = {json.dumps(command)}\nargs = {json.dumps(args)}\n"
        f"env = {{ MEMORY_FILE_PATH = {json.dumps(env['MEMORY_FILE_PATH'] + '.2')} }}\n"
    )
    revision = STATELESS if request.param == "sdk" else "2025-11-25"  # the era that is spoken with it
    how: dict[str, Any] = {"capabilities": CAPABILITIES, "answer": answer, "revision": revision}
    for name in ("alone", "through"):
        (tmp_path / name).mkdir()
    options = write_config(tmp_path, table)
    with (
        served(tmp_path / "alone", command=[command, *args], env=env, **how) as alone,
        served(tmp_path / "through", *options, **how) as through,
    ):
        yield alone, through, calls
        alone.kill()


def _ask(server: Server, method: str, params: dict[str, Any]) -> Any:
    try:
        return server.request(method, params)
    except Refusal as refusal:
        return {"error": (refusal.code, refusal.message, refusal.data)}


def _without_names(items: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Return a list's items as the mounted server has them."""
    found = []
    for item in items:
        meta = dict(item.get("_meta", {}))
        if ORIGINAL in meta:
            item = {**item, key: meta.pop(ORIGINAL)}
            item = {**item, "_meta": meta} if meta else {name: item[name] for name in item if name != "_meta"}
        found.append(item)
    return found


def _list(server: Server, method: str, field: str, key: str) -> Any:
    found = _ask(server, method, {})
    return _without_names(found[field], key) if field in found else []


def test_lists_and_results_equal_what_the_server_gives_alone(pair: tuple[Server, Server, list[Any]]) -> None:
    alone, through, calls = pair
    assert eventually(lambda: any(ORIGINAL in tool.get("_meta", {}) for tool in through.request("tools/list")["tools"]))
    for method, field, key in (
        ("tools/list", "tools", "name"),
        ("prompts/list", "prompts", "name"),
        ("resources/list", "resources", "uri"),
        ("resources/templates/list", "resourceTemplates", "uriTemplate"),
    ):
        own = json.dumps([_without_required_task(item) for item in _list(alone, method, field, key)])
        mounted = [item for item in _list(through, method, field, key) if _is_far(item, own)]
        assert json.dumps(mounted) == own, method
    for tool, arguments in calls:
        own_result = _ask(alone, "tools/call", {"name": tool, "arguments": arguments})
        far_result = _ask(through, "tools/call", {"name": f"far__{tool}", "arguments": arguments})
        assert _normal(far_result) == _normal(own_result), tool


def test_a_real_tool_that_runs_as_a_task_only_is_called_as_others(start: Callable[..., Server], tmp_path: Path) -> None:
    command, *args = _find_command("everything", tmp_path)
    table = f"[mounts.far]\ncommand = {json.dumps(command)}\nargs = {json.dumps(args)}\n"
    server = start(*write_config(tmp_path, table), capabilities=CAPABILITIES, answer=answer)
    wait_listed(server)
    told = server.text("far__simulate-research-query", {"topic": "lighthouses"})
    assert "lighthouses" in told


def _without_required_task(item: dict[str, Any]) -> dict[str, Any]:
    """Return a tool without what is done here: clients are not told that it runs as a task only."""
    is_required = item.get("execution") == {"taskSupport": "required"}
    return {name: value for name, value in item.items() if name != "execution" or not is_required}


def _is_far(item: dict[str, Any], own: str) -> bool:
    return json.dumps(item) in own


def _normal(result: Any) -> str:
    """Return a result as text, without what names its server and without the time of day."""
    if isinstance(result, dict) and SERVER in result.get("_meta", {}):
        meta = {name: value for name, value in result["_meta"].items() if name != SERVER}
        result = {**result, "_meta": meta} if meta else {name: result[name] for name in result if name != "_meta"}
    text = json.dumps(result).replace(".jsonl.2", ".jsonl")
    return re.sub(r"\d+:\d\d:\d\d [AP]M", "now", text)
