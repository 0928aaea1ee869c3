"""What one gateway of a node has answered, another one knows: output that is read, and commands that go on."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.clients.raw_client import STATELESS, Server, eventually
from tests.clients.raw_http_client import Site, site, spoken
from tests.server.features.nodes.nodes import running_node
from tests.tools.shell_commands import BOUND, living

REPEATED = "this begins where the last answer began"


@pytest.fixture
def gateways(tmp_path: Path) -> Iterator[list[tuple[Site, Server]]]:
    """Two gateways of one node, each with a client."""
    with running_node(tmp_path / "node", "--sandbox", "none") as node, ExitStack() as stack:
        found: list[tuple[Site, Server]] = []
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            gateway = stack.enter_context(site(tmp_path / name, "--node", str(node.address), workspace=False))
            found.append((gateway, stack.enter_context(spoken(gateway, "http", revision=STATELESS))))
        yield found


def read(client: Server, task: int = 1) -> tuple[list[int], bool]:
    """Return the new lines, which are numbers, and whether the result says that they may be known."""
    text = client.text("ReadBgOutput", {"task_id": task})
    return [int(line) for line in re.findall(r"^\d+$", text, re.MULTILINE)], REPEATED in text


def test_a_read_after_a_kill_of_the_gateway_begins_where_its_last_answer_began(
    gateways: list[tuple[Site, Server]],
) -> None:
    (first, client), (_, other) = gateways
    client.text("BackgroundBash", {"command": "seq 5; until [ -e more ]; do sleep 0.05; done; seq 6 9"})
    assert eventually(lambda: "5\n" in other.request("resources/read", {"uri": "bg://1/output"})["contents"][0]["text"])
    assert read(client) == ([1, 2, 3, 4, 5], False)
    first.kill()
    other.text("Bash", {"command": "touch more"})
    assert eventually(lambda: "exited" in other.text("ListBgTasks"))
    assert read(other) == ([1, 2, 3, 4, 5, 6, 7, 8, 9], True)
    assert read(other) == ([], False)


def test_a_reader_of_a_killed_gateway_misses_no_line(gateways: list[tuple[Site, Server]]) -> None:
    (first, client), (_, other) = gateways
    client.text("BackgroundBash", {"command": "for n in $(seq 80); do echo $n; sleep 0.01; done"})
    seen: list[int] = []

    def read_for_ever() -> None:
        while True:
            try:
                seen.extend(read(client)[0])
            except Exception:  # the gateway is killed, at any moment
                return

    reader = threading.Thread(target=read_for_ever)
    reader.start()
    assert eventually(lambda: len(seen) > 20)
    first.kill()
    reader.join(BOUND)
    assert eventually(lambda: "exited" in other.text("ListBgTasks"))
    lines, _ = read(other)
    assert sorted({*seen, *lines}) == list(range(1, 81))


def test_a_gateway_that_ends_in_order_has_sent_its_answers(gateways: list[tuple[Site, Server]]) -> None:
    (first, client), (_, other) = gateways
    client.text("BackgroundBash", {"command": "seq 5; until [ -e more ]; do sleep 0.05; done; seq 6 9"})
    assert eventually(lambda: "5\n" in other.request("resources/read", {"uri": "bg://1/output"})["contents"][0]["text"])
    assert read(client) == ([1, 2, 3, 4, 5], False)
    first.stop()
    other.text("Bash", {"command": "touch more"})
    assert eventually(lambda: "exited" in other.text("ListBgTasks"))
    assert read(other) == ([6, 7, 8, 9], False)


def test_a_gateway_that_lives_has_sent_its_answers(gateways: list[tuple[Site, Server]]) -> None:
    (_, client), (_, other) = gateways
    client.text("BackgroundBash", {"command": "seq 5"})
    assert eventually(lambda: "exited" in other.text("ListBgTasks"))
    assert read(client) == ([1, 2, 3, 4, 5], False)
    assert read(other) == ([], False)


@pytest.mark.parametrize("question", ["ListBgTasks", "Bash"])
def test_the_first_call_after_a_kill_of_the_gateway_tells_what_goes_on(
    gateways: list[tuple[Site, Server]], question: str
) -> None:
    (first, client), (_, other) = gateways
    mark = f"toolgate-test-{time.monotonic_ns()}"
    client.begin("tools/call", {"name": "Bash", "arguments": {"command": f"exec -a {mark} sleep 60"}})
    assert eventually(lambda: bool(living(mark)))
    other.text("Bash", {"command": "true"})
    first.kill()
    told = other.text(question, {"command": "true"} if question == "Bash" else {})
    assert "goes on, though the call that started it was cut off" in told
    assert mark in other.text("ListBgTasks")
    other.text("KillBgTask", {"task_id": 1})
