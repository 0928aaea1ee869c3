"""A gateway with --node that is signalled in its drain and in its grace: its calls are answered, its commands go on."""

import contextlib
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE, STATELESS, Server, eventually
from tests.clients.raw_http_client import Site, Sse, site, spoken
from tests.clients.raw_task_client import KNOWS, created, get
from tests.server.features.nodes.gateway.test_gateway_ends import BUILD, Calling, call, find_task, text
from tests.server.features.nodes.nodes import NodeProcess, running_node
from tests.tools.shell_commands import living
from tests.transports.http.test_shutdown import ask, is_refused

pytestmark = pytest.mark.soak  # a drain and a grace in each: some two seconds

LONG = "60"  # seconds: a test that waits for it fails
AT_ONCE = 20.0  # seconds, with a margin for a busy machine: a third of what is cut short


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running_node(tmp_path_factory.mktemp("node"), "--sandbox", "none") as node:
        yield node


@pytest.fixture
def mark() -> str:
    return f"toolgate-test-{secrets.token_hex(8)}"


def gateway(folder: Path, node: NodeProcess, drain: str = "0", grace: str = "0.2", *options: str) -> Any:
    words = (*options, "--drain", drain, "--grace", grace, "--structured-output", "full")
    return site(folder, "--node", f"unix:{node.socket}", *words, workspace=False)


def end_twice(server: Site) -> None:
    """End a gateway by two signals, the second in its drain or in its grace."""
    server.process.send_signal(signal.SIGTERM)
    assert eventually(lambda: is_refused(server))
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE) == 0
    assert time.monotonic() - began < AT_ONCE


def check_goes_on(folder: Path, node: NodeProcess, mark: str) -> None:
    """The command that a gateway left is a task of the next one, which ends it."""
    assert living(mark)
    with gateway(folder, node) as second:
        task = find_task(second, mark)
        assert task is not None
        assert "killed" in text(call(second, "KillBgTask", task_id=task))
        assert not living(mark)
        assert (node.state / "workspaces" / "local" / mark).read_text() == "x\n"


def test_a_call_is_served_in_the_drain_and_released_after_the_grace(
    node: NodeProcess, tmp_path: Path, mark: str
) -> None:
    with gateway(tmp_path, node, drain="0.3") as first, contextlib.closing(first.connect()) as probing:
        assert ask(probing, "/ready").status == 200
        calling = Calling(first, BUILD.format(mark=mark))
        assert eventually(lambda: bool(living(mark)))
        began = time.monotonic()
        first.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: is_refused(first))
        assert ask(probing, "/ready").status == 503
        calling.join(PATIENCE)
        assert time.monotonic() - began >= 0.3 + 0.2
        assert "the server is shutting down" in calling.answer and "goes on as a background task" in calling.answer
        assert first.process.wait(PATIENCE) == 0
    check_goes_on(tmp_path, node, mark)


@pytest.mark.parametrize("drain", [LONG, "0"], ids=["drain", "grace"])
def test_a_second_signal_ends_a_gateway_at_once_and_its_command_goes_on(
    node: NodeProcess, tmp_path: Path, mark: str, drain: str
) -> None:
    with gateway(tmp_path, node, drain, grace=LONG) as first:
        calling = Calling(first, BUILD.format(mark=mark))
        assert eventually(lambda: bool(living(mark)))
        end_twice(first)
        calling.join(PATIENCE)
        assert not calling.answer or "goes on as a background task" in calling.answer
    check_goes_on(tmp_path, node, mark)


def call_over_sse(client: Server, mark: str) -> int:
    """Call a command and wait until it runs. Return the call's id."""
    id = client.begin("tools/call", {"name": "Bash", "arguments": {"command": BUILD.format(mark=mark)}})
    assert eventually(lambda: bool(living(mark)))
    return id


def test_a_call_over_sse_is_released_after_the_grace(node: NodeProcess, tmp_path: Path, mark: str) -> None:
    with gateway(tmp_path, node, drain="0.2") as first:
        with spoken(first, "sse") as client:
            id = call_over_sse(client, mark)
            first.process.send_signal(signal.SIGTERM)
            assert "goes on as a background task" in text(client.result(id))
        assert first.process.wait(PATIENCE) == 0
    check_goes_on(tmp_path, node, mark)


@pytest.mark.parametrize("drain", [LONG, "0"], ids=["drain", "grace"])
def test_a_command_called_over_sse_goes_on_after_a_second_signal(
    node: NodeProcess, tmp_path: Path, mark: str, drain: str
) -> None:
    with gateway(tmp_path, node, drain, grace=LONG) as first:
        client = Sse(first, "2025-11-25", None, None, False)
        try:
            client.shake_hands()
            call_over_sse(client, mark)
            end_twice(first)
        finally:
            client.kill()
    check_goes_on(tmp_path, node, mark)


@pytest.mark.parametrize("drain", ["0.2", LONG], ids=["once", "twice"])
def test_the_next_gateway_says_that_the_command_of_a_task_goes_on(
    node: NodeProcess, tmp_path: Path, mark: str, drain: str
) -> None:
    speaks: Any = {"revision": STATELESS, "capabilities": KNOWS}
    with (
        gateway(tmp_path, node, drain, LONG if drain == LONG else "0.2", "--hold", "1") as first,
        spoken(first, "http", **speaks) as client,
        contextlib.closing(first.connect()) as idle,
    ):
        assert ask(idle, "/ready").status == 200
        id = created(client, "Bash", command=BUILD.format(mark=mark))
        if drain == LONG:
            end_twice(first)
        else:
            first.stop()
    with gateway(tmp_path, node) as second, spoken(second, "http", **speaks) as client:
        found = get(client, id)
        assert "goes on as a background task" in text(found["result"])
    check_goes_on(tmp_path, node, mark)
