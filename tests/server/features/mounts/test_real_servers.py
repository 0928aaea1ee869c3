"""Servers that nobody here wrote: what they list and return through a mount equals what they give alone, field by
field, but for the names."""

import http.server
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import ROOT, STATELESS, Refusal, Server, eventually, served
from tests.interop.node import FOLDER, node, package
from tests.server.features.mounts.mounted import CAPABILITIES, answer, wait_listed, write_config

FAST = Path(__file__).with_name("sdk_server.py")
FASTMCP_SERVER = FOLDER / "frameworks" / "fastmcp_server.py"
PYPI = ROOT / ".venv" / "frameworks" / "servers" / "bin" / "python"
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
FASTMCP: Calls = (*SDK, ("log", {"text": "é"}))
TYPESCRIPT: Calls = (("add", {"a": 1, "b": 2.5}), ("link", {}), ("add", {"a": "x"}))
GIT: Calls = (
    ("git_status", {"repo_path": "{folder}"}),
    ("git_log", {"repo_path": "{folder}", "max_count": 1}),
    ("git_show", {"repo_path": "{folder}", "revision": "HEAD"}),
    ("git_diff_unstaged", {"repo_path": "{folder}", "context_lines": 1}),
    ("git_branch", {"repo_path": "{folder}", "branch_type": "local"}),
    ("git_log", {"repo_path": "/"}),
)
TIME: Calls = (
    ("get_current_time", {"timezone": "Asia/Kathmandu"}),
    ("convert_time", {"source_timezone": "UTC", "time": "9:70", "target_timezone": "Asia/Tokyo"}),
    ("get_current_time", {"timezone": "Nowhere"}),
)
FETCH: Calls = (
    ("fetch", {"url": "{site}/page", "max_length": 40}),
    ("fetch", {"url": "{site}/page", "raw": True}),
    ("fetch", {"url": "{site}/none"}),
    ("fetch", {}),
)
MAP: Calls = (("show-map", {"west": 10, "south": 59.5, "label": "Oslo"}), ("show-map", {"west": "x"}), ("geocode", {}))
MONITOR: Calls = (("get-system-info", {}), ("get-system-info", {"more": 1}))
MODERN, LEGACY = (STATELESS, "modern"), ("2025-11-25", "legacy")


@dataclass(frozen=True)
class RealServer:
    """A server: `command(folder)` returns what starts it. `era`: the revision that is spoken with it, and how it is
    mounted."""

    command: Callable[[Path], list[str]]
    calls: Calls
    era: tuple[str, str] = ("2025-11-25", "auto")


def _npm(name: str) -> Callable[[Path], list[str]]:
    return lambda folder: [node(), str(package(f"@modelcontextprotocol/server-{name}") / "dist/index.js")]


def _typescript(major: str) -> Callable[[Path], list[str]]:
    return lambda folder: [node(), str(FOLDER / "mounted_server.mjs"), major]


def _pypi(*words: str) -> Callable[[Path], list[str]]:
    return lambda folder: [str(PYPI), *words, *(["--repository", str(folder)] if words[-1] == "mcp_server_git" else [])]


SERVERS = {
    "everything": RealServer(_npm("everything"), EVERYTHING),
    "memory": RealServer(_npm("memory"), MEMORY),
    "thinking": RealServer(_npm("sequential-thinking"), THINKING),
    "files": RealServer(lambda folder: [*_npm("filesystem")(folder), str(folder)], FILES),
    "map": RealServer(lambda folder: [*_npm("map")(folder), "--stdio"], MAP),
    "system monitor": RealServer(lambda folder: [*_npm("system-monitor")(folder), "--stdio"], MONITOR),
    "sdk": RealServer(lambda _: [sys.executable, str(FAST)], SDK, (STATELESS, "auto")),
    "typescript 1": RealServer(_typescript("1"), TYPESCRIPT),
    "typescript 2, legacy": RealServer(_typescript("2"), TYPESCRIPT, LEGACY),
    "typescript 2, modern": RealServer(_typescript("2"), TYPESCRIPT, MODERN),
}
PYPI_SERVERS = {  # `make frameworks` installs them
    "fastmcp, legacy": RealServer(_pypi(str(FASTMCP_SERVER)), FASTMCP, LEGACY),
    "fastmcp, modern": RealServer(_pypi(str(FASTMCP_SERVER)), FASTMCP, MODERN),
    "git": RealServer(_pypi("-m", "mcp_server_git"), GIT, (STATELESS, "auto")),
    "time": RealServer(_pypi("-m", "mcp_server_time"), TIME, (STATELESS, "auto")),
    "fetch": RealServer(_pypi("-m", "mcp_server_fetch", "--ignore-robots-txt"), FETCH, (STATELESS, "auto")),
}
QUICK = ("everything", "files", "sdk", "typescript 2, modern")  # one of each kind, and each era


def _make_repository(folder: Path) -> None:
    """Make a repository with a commit and a change."""
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    (folder / "a.txt").write_text("one\n")
    for words in (["init", "-q", "-b", "main"], ["add", "."], [*who, "commit", "-q", "-m", "the first"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    (folder / "a.txt").write_text("two\n")


class _Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<title>Lamps</title><h1>Lamps</h1><p>Trim the wick at dusk, and wait for the ships.</p>"
        self.send_response(200 if self.path == "/page" else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: Any) -> None: ...


@pytest.fixture
def pages() -> Iterator[str]:
    """Yield the address of a site with one page."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as listening:
        threading.Thread(target=listening.serve_forever).start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()


@pytest.fixture(params=[*SERVERS, *PYPI_SERVERS])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Yield a real server alone, the same one mounted, and what to call."""
    folder = tmp_path / "folder"
    folder.mkdir()
    real = {**SERVERS, **PYPI_SERVERS}[request.param]
    if request.param == "git":
        _make_repository(folder)
    site = request.getfixturevalue("pages") if request.param == "fetch" else ""
    calls = json.loads(json.dumps(real.calls).replace("{folder}", str(folder)).replace("{site}", site))
    command, *args = real.command(folder)
    revision, protocol = real.era
    env = {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    table = (
        f'[mounts.far]\ncommand = {json.dumps(command)}\nargs = {json.dumps(args)}\nprotocol = "{protocol}"\n'
        f"env = {{ MEMORY_FILE_PATH = {json.dumps(env['MEMORY_FILE_PATH'] + '.2')} }}\n"
    )
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


@pytest.mark.brief(*QUICK)
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
    command, *args = SERVERS["everything"].command(tmp_path)
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
    """Return a result as text, without what names its server, the time of day and random ids."""
    if isinstance(result, dict) and SERVER in result.get("_meta", {}):
        meta = {name: value for name, value in result["_meta"].items() if name != SERVER}
        result = {**result, "_meta": meta} if meta else {name: result[name] for name in result if name != "_meta"}
    text = json.dumps(result).replace(".jsonl.2", ".jsonl")
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "id", text)
    return re.sub(r"\d+:\d\d:\d\d [AP]M|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", "now", text)
