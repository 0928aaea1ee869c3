"""Real servers with --node that end, by a signal or by `kill -9`: what they ran goes on, once, for the next one."""

import contextlib
import http.client
import json
import os
import random
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE, STATELESS, eventually
from tests.clients.raw_http_client import Site, site
from tests.server.features.nodes.nodes import NodeProcess, running_node
from tests.tools.shell_commands import living

META = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
}
BUILD = """
echo x >> {mark}
(setsid bash -c 'exec -a {mark} sleep 500' &)
for ((i = 0; i < 5000; i++)); do echo $i; sleep 0.02; done
"""
ADOPTED = 3.0 + 4.0  # seconds after a gateway was killed until its commands are background tasks, and some margin
LATEST = 0.4  # seconds after a call began that its server is killed at the latest


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running_node(tmp_path_factory.mktemp("node"), "--sandbox", "none") as node:
        yield node


def call(server: Site, tool: str, **arguments: Any) -> dict[str, Any]:
    """Return the result of a call."""
    params = {"name": tool, "arguments": arguments, "_meta": META}
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": "tools/call", "Mcp-Name": tool}
    _, _, answer = server.ask("POST", "/mcp", request, **{key.replace("-", "_"): headers[key] for key in headers})
    return answer["result"]  # type: ignore[no-any-return]


def text(result: dict[str, Any]) -> str:
    return "\n".join(block["text"] for block in result["content"])


class Calling(threading.Thread):
    """A call of a command that may lose its server. `answer` is its text, or "" """

    def __init__(self, server: Site, command: str) -> None:
        super().__init__()
        self._server = server
        self._command = command
        self.answer = ""
        self.start()

    def run(self) -> None:
        try:
            self.answer = text(call(self._server, "Bash", command=self._command, timeout=600_000))
        except (OSError, http.client.HTTPException, ValueError, IndexError):
            self.answer = ""


def gateway(folder: Path, node: NodeProcess) -> Any:
    words = ("--grace", "0.3", "--structured-output", "full")
    return site(folder, "--node", f"unix:{node.socket}", *words, workspace=False)


def find_task(server: Site, mark: str) -> int | None:
    rows = call(server, "ListBgTasks")["structuredContent"]["tasks"]
    return next((row["task_id"] for row in rows if mark in row["command"]), None)


def read_lines(server: Site, task: int, count: int) -> list[str]:
    """Return at least `count` lines of a task."""
    output = ""
    until = time.monotonic() + PATIENCE
    while len(lines := output.split("\n")[:-1]) < count and time.monotonic() < until:
        output += call(server, "ReadBgOutput", task_id=task)["structuredContent"]["output"]
    return lines


def test_a_command_goes_on_when_its_gateway_is_ended_and_the_next_result_says_so(
    node: NodeProcess, tmp_path: Path
) -> None:
    mark = f"toolgate-test-{secrets.token_hex(8)}"
    with gateway(tmp_path, node) as first:
        calling = Calling(first, BUILD.format(mark=mark))
        assert eventually(lambda: bool(living(mark)))
        assert first.stop() == 0
    calling.join(PATIENCE)
    assert "the server is shutting down" in calling.answer and "goes on as a background task" in calling.answer
    with gateway(tmp_path, node) as second:
        said = text(call(second, "Bash", command="true"))  # it is known at once: the first server said that it ends
        task = find_task(second, mark)
        assert f"background task {task} (" in said and "goes on, though the call that started it was cut off" in said
        lines = read_lines(second, task, 40)
        assert lines == [str(number) for number in range(len(lines))]
        assert "killed" in text(call(second, "KillBgTask", task_id=task))
        assert not living(mark)
        assert (node.state / "workspaces" / "local" / mark).read_text() == "x\n"


def test_a_cancelled_call_ends_its_command_at_the_node(node: NodeProcess, tmp_path: Path) -> None:
    mark = f"toolgate-test-{secrets.token_hex(8)}"
    with gateway(tmp_path, node) as server:
        params = {"name": "Bash", "arguments": {"command": BUILD.format(mark=mark)}, "_meta": META}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        connection = server.connect()
        headers = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": "tools/call", "Mcp-Name": "Bash"}
        accepted = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        connection.request("POST", "/mcp", body, headers | accepted)
        assert eventually(lambda: bool(living(mark)))
        connection.close()  # which cancels it
        assert eventually(lambda: not living(mark))
        assert find_task(server, mark) is None


def kill_at_random(folder: Path, node: NodeProcess, count: int, dice: random.Random) -> None:
    """Kill `count` servers, each at a moment of its own after a call began, perhaps before the command starts.

    Each command runs once or not at all. The next server reads every line of it once, and ends all that it started.
    """
    marks = [f"toolgate-test-{dice.randbytes(8).hex()}" for _ in range(count)]
    root = node.state / "workspaces" / "local"
    with contextlib.ExitStack() as stack:
        for each in marks:
            (folder / each).mkdir(parents=True)
            server = stack.enter_context(gateway(folder / each, node))
            calling = Calling(server, BUILD.format(mark=each))
            time.sleep(dice.random() * LATEST)
            server.kill()
            calling.join(PATIENCE)
            assert not calling.answer
    with gateway(folder / "next", node) as server:
        since = time.monotonic()
        for each in marks:
            task = None
            while task is None and ((root / each).exists() or time.monotonic() - since < ADOPTED):
                assert time.monotonic() - since < PATIENCE, "what runs is not listed"
                task = find_task(server, each)
            if task is None:
                assert not living(each)
                continue
            lines = read_lines(server, task, 100)
            assert lines == [str(number) for number in range(len(lines))] and len(lines) >= 100
            assert (root / each).read_text() == "x\n"
            assert "killed" in text(call(server, "KillBgTask", task_id=task))
            assert not living(each)


def test_a_command_runs_once_whenever_its_server_is_killed(node: NodeProcess, tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    kill_at_random(tmp_path, node, 2, random.Random(seed))


@pytest.mark.soak
def test_twenty_servers_are_killed_in_a_row(node: NodeProcess, tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    dice = random.Random(seed)
    for trial in range(20):
        kill_at_random(tmp_path / str(trial), node, 1, dice)
