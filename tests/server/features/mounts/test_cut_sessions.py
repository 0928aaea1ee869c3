"""A thousand sessions, each with a program of its own, that are cut without a word leave no process."""

import concurrent.futures
import http.client
import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import eventually
from tests.clients.raw_http_client import POSTED, Site, site, spoken
from tests.server.features.mounts.mounted import command_mount, wait_listed, write_config

SESSIONS = 1_000
AT_ONCE = 8
GONE_WITHIN = 30.0  # seconds
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "cut", "version": "1"}}


def cut_one(listening: Site) -> int:
    """Open a session and its stream, call its program, and cut both connections. Return the program's pid."""
    posting, streaming = listening.connect(), listening.connect()
    try:
        answer = post(posting, {"id": 1, "method": "initialize", "params": HELLO})
        headers = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"], "MCP-Protocol-Version": "2025-11-25"}
        post(posting, {"method": "notifications/initialized"}, **headers)
        streaming.request("GET", "/mcp", headers={"Accept": "text/event-stream", **headers})
        assert streaming.getresponse().status == 200
        params = {"name": "far__pid", "arguments": {}}
        called = post(posting, {"id": 2, "method": "tools/call", "params": params}, **headers)
        return int(called.body["result"]["content"][0]["text"])
    finally:
        posting.close()
        streaming.close()


class Posted:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.headers = response.headers
        text = response.read().decode()
        data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
        self.body: Any = json.loads(data[-1] if data else text or "null")


def post(connection: http.client.HTTPConnection, message: dict[str, Any], **headers: str) -> Posted:
    connection.request("POST", "/mcp", json.dumps({"jsonrpc": "2.0", **message}), {**POSTED, **headers})
    return Posted(connection.getresponse())


def list_tree(pid: int) -> set[int]:
    """Return the pids of all that a process has started."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found |= {child, *(list_tree(child) if Path(f"/proc/{child}").exists() else ())}
    return found


@pytest.mark.soak  # two minutes
def test_a_thousand_sessions_that_are_cut_leave_no_process(tmp_path: Path) -> None:
    options = write_config(tmp_path, command_mount("legacy", "far", 'per = "session"'))
    with site(tmp_path / "server", "--limit", "calls=0", *options) as listening:
        with spoken(listening, "http") as first:
            wait_listed(first)
            first.text("far__pid")
        assert eventually(lambda: len(list_tree(listening.process.pid)) <= 2)  # what starts programs
        base = len(list_tree(listening.process.pid))
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads:
            pids = list(threads.map(lambda _: cut_one(listening), range(SESSIONS)))
        assert len(set(pids)) == SESSIONS
        assert eventually(lambda: len(list_tree(listening.process.pid)) <= base, GONE_WITHIN)
