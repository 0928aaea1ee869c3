"""The program that serves a plugin is an MCP server, whose calls only Toolgate can make."""

import contextlib
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE
from tests.servers.isolated_plugins import plugin_folder
from toolgate.server.features.mounts.plugins.program import COMMAND
from toolgate.server.protocol.request_meta import CAPABILITIES, VERSION
from toolgate.server.protocol.revisions import STATELESS

REVISION = next(iter(STATELESS))
META = {VERSION: REVISION, CAPABILITIES: {}}
PARTS = """
    @tool(read_only=True, scope="shop:read", in_plan="read-only")
    async def look(item: str) -> str:
        "Look at an item."
        return item

    @resource("shelf://{name}")
    def shelf(name: str) -> str:
        "A shelf."
        return name

    @resource("shelf-count://now")
    def count() -> str:
        "How many shelves there are."
        return "1"
"""


class Worker:
    """The program, as a client sees it."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self._last_id = 0

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the answer to a request."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self._last_id += 1
        message = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": {**params, "_meta": META}}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert answer["id"] == self._last_id
        return answer


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """Start the program for a plugin."""
    file = plugin_folder(tmp_path, PARTS) / "it.py"
    line, its_line = socket.socketpair()
    with its_line:
        words = [*COMMAND, str(its_line.fileno()), str(file), "", "text"]
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[its_line.fileno()], start_new_session=True
        )
    with contextlib.closing(line), process:
        yield Worker(process)
        line.close()
        process.wait(PATIENCE)


def test_it_lists_its_parts_with_what_a_mount_has_to_know(worker: Worker) -> None:
    told = worker.ask("server/discover")["result"]
    assert told["supportedVersions"] == [REVISION] and {"tools", "prompts", "resources"} < told["capabilities"].keys()
    assert worker.ask("tools/list")["result"]["tools"] == [], "it is not loaded yet"
    assert worker.ask("toolgate/load")["result"]["resultType"] == "complete"

    (tool,) = worker.ask("tools/list")["result"]["tools"]
    assert (tool["name"], tool["inputSchema"]["required"]) == ("look", ["item"])
    part = tool["_meta"]["toolgate/part"]
    assert (part["scope"], part["in_plan"], tool["annotations"]["readOnlyHint"]) == ("shop:read", "read-only", True)
    (template,) = worker.ask("resources/templates/list")["result"]["resourceTemplates"]
    (resource,) = worker.ask("resources/list")["result"]["resources"]
    assert (template["uriTemplate"], resource["uri"]) == ("shelf://{name}", "shelf-count://now")
    assert worker.ask("prompts/list")["result"]["prompts"] == worker.ask("events/list")["result"]["events"] == []


def test_a_call_without_its_caller_is_refused(worker: Worker) -> None:
    worker.ask("toolgate/load")

    error = worker.ask("tools/call", name="look", arguments={"item": "lamp"})["error"]
    assert error["code"] == -32602 and "'toolgate/caller'" in error["message"]
    assert worker.ask("ping")["error"]["code"] == -32601


def test_it_ends_with_its_input(worker: Worker) -> None:
    worker.ask("server/discover")
    assert worker.process.stdin is not None

    worker.process.stdin.close()
    worker.process.wait(PATIENCE)
