"""One conversation on every transport in every revision: the wire client validates each message on its way."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import REVISIONS, STATELESS, Refusal, Server, eventually
from tests.clients.raw_http_client import Site, spoken

Connect = Callable[..., Server]


@pytest.mark.pairs
@pytest.mark.parametrize("revision", REVISIONS)
def test_a_whole_conversation(connect: Connect, revision: str) -> None:
    server = connect(revision=revision)
    tools = {tool["name"]: tool for tool in server.request("tools/list")["tools"]}
    assert len(tools) > 13
    assert server.text("echo", {"text": "é\u2028\n"}) == "é\u2028\n"
    assert server.error("refuse") == "no: try something else"
    assert "count" in server.error("typed")
    with pytest.raises(Refusal) as caught:
        server.call("no_such_tool")
    assert caught.value.code == -32602
    level = {"io.modelcontextprotocol/logLevel": "notice"} if revision == STATELESS else {}
    server.call("talk", **level)
    assert [note["level"] for note in server.notes("notifications/message")] == ["notice", "error"]
    server.call("climb", progressToken=7)
    assert {note["progressToken"] for note in server.notes("notifications/progress")} == {7}
    silent = server.begin("tools/call", {"name": "wait", "arguments": {"seconds": 1.3}})  # past the patience
    assert server.text("everything").startswith("words")
    assert server.result(silent)["content"][0]["text"] == "waited"


@pytest.mark.pairs
@pytest.mark.parametrize("revision", REVISIONS)
def test_a_large_message_either_way_does_not_hold_up_others(connect: Connect, revision: str) -> None:
    server = connect(revision=revision)
    text = "é" * 2**21
    large = server.begin("tools/call", {"name": "echo", "arguments": {"text": text}})
    small = server.begin("tools/call", {"name": "echo", "arguments": {"text": "small"}})
    assert server.result(small)["content"][0]["text"] == "small"
    assert server.result(large)["content"][0]["text"] == text


def test_twenty_clients_of_each_transport_are_served_side_by_side(shared: Site) -> None:

    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(spoken(shared, transport, revision=revision))
            for transport, revision in (("http", "2025-11-25"), ("sse", "2024-11-05"), ("http", STATELESS))
            for _ in range(20)
        ]
        begun = time.monotonic()
        ids = [client.begin("tools/call", {"name": "wait", "arguments": {"seconds": 0.5}}) for client in clients]
        for client, id in zip(clients, ids, strict=True):
            assert client.result(id)["content"][0]["text"] == "waited"
        assert time.monotonic() - begun < 60 * 0.5
        for n, client in enumerate(clients):
            assert client.text("echo", {"text": f"of {n}"}) == f"of {n}"


@pytest.mark.parametrize("transport", ["http", "sse"])
def test_a_change_of_the_list_reaches_each_session_once(listen: Callable[..., Site], transport: str) -> None:
    site = listen()
    changed = "notifications/tools/list_changed"
    with spoken(site, transport) as one, spoken(site, transport, revision="2025-03-26") as other:
        skill = site.stderr.parent / "home" / ".claude" / "skills" / "brew"
        skill.mkdir(parents=True)
        (skill / "SKILL.md").write_text("---\nname: brew\ndescription: What brew is for.\n---\nDo it.\n")
        for client in (one, other):
            client.wait(lambda message: message.get("method") == changed)
            client.request("ping")
            came = [message for message in client.messages if message.get("method") == changed]
            assert len(came) == 1


@pytest.mark.parametrize("transport", ["http", "sse"])
def test_the_state_of_a_session_is_its_own_and_ends_with_it(shared: Site, transport: str) -> None:
    with spoken(shared, transport) as planner, spoken(shared, transport) as other:
        planner.call("PlanMode", {"action": "enter", "goal": "think"})
        assert "plan" in planner.error("change")
        assert other.text("change") == "changed"


def test_hundreds_of_sessions_and_calls_leave_no_descriptor_and_little_memory(listen: Callable[..., Site]) -> None:
    site = listen()

    def resident() -> int:
        line = next(
            line for line in Path(f"/proc/{site.process.pid}/status").read_text().splitlines() if "VmRSS" in line
        )
        return int(line.split()[1]) * 1024

    def descriptors() -> int:
        return len(list(Path(f"/proc/{site.process.pid}/fd").iterdir()))

    def round_of(count: int) -> None:
        for n in range(count):
            with spoken(site, ("http", "sse")[n % 2]) as client:
                client.text("echo", {"text": "x" * 10_000})
                client.call("climb", progressToken=n)

    round_of(40)
    eventually(lambda: False, 2.0)  # past what is started late
    begun: tuple[Any, ...] = (resident(), descriptors())
    round_of(120)
    assert eventually(lambda: descriptors() <= begun[1] + 2)
    assert resident() - begun[0] < 8 * 2**20


@pytest.mark.brief("stdio", "http")
def test_the_memory_of_a_large_call_serves_the_next(connect: Connect) -> None:
    """Its pages are not given back and faulted in again: 256 for each copy of a mebibyte."""
    client = connect(fresh=True)
    sent = "x" * 2**20

    def count_faults() -> int:
        return int(Path(f"/proc/{client.process.pid}/stat").read_text().rpartition(")")[2].split()[7])

    def echo(times: int) -> None:
        for _ in range(times):
            assert client.text("echo", {"text": sent}) == sent

    echo(10)
    before = count_faults()
    echo(20)
    assert count_faults() - before < 20 * 64
