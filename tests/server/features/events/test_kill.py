"""Events of a server that is killed at random moments: none is lost, none has two ids."""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.event_client import Stream, first_cursor, poll
from tests.clients.raw_client import STATELESS, Server, eventually

Start = Callable[..., Server]


def all_events(client: Server, cursor: str) -> dict[str, list[str]]:
    """Return the ids of the events after a cursor, by the name of the task that each tells about."""
    found: dict[str, list[str]] = {}
    while True:
        page = poll(client, "todo.changed", cursor, maxEvents=100)
        assert page["truncated"] is False
        for event in page["events"]:
            found.setdefault(event["data"]["name"], []).append(event["eventId"])
        if not page["hasMore"]:
            return found
        cursor = page["cursor"]


def test_a_command_that_was_lost_with_the_server_is_told_without_a_call(start: Start, tmp_path: Path) -> None:
    client = start(revision=STATELESS, state=tmp_path / "kept")
    cursor = first_cursor(client, "command.ended")
    client.call("BackgroundBash", {"command": "echo begun; sleep 60"})
    assert eventually(lambda: "begun" in client.text("ReadBgOutput", {"task_id": 1}))
    client.kill()
    client = start(revision=STATELESS, state=tmp_path / "kept")
    stream = Stream(client, "command.ended", cursor=cursor)
    found = stream.wait("event")["data"]
    assert (found["id"], found["status"], found["last_lines"]) == (1, "lost", "begun")
    client.kill()
    client = start(revision=STATELESS, state=tmp_path / "kept")
    client.text("BackgroundBash", {"command": "true"})
    stream = Stream(client, "command.ended", cursor=cursor)
    assert [stream.wait("event", count)["data"]["id"] for count in (1, 2)] == [1, 2]


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_read_after_a_kill_begins_where_the_last_answer_began(start: Start, tmp_path: Path, is_killed: bool) -> None:
    client = start(revision=STATELESS, state=tmp_path / "kept")
    client.call("BackgroundBash", {"command": "echo begun; sleep 60"})
    assert eventually(lambda: "begun" in client.text("ReadBgOutput", {"task_id": 1}))
    client.kill() if is_killed else client.close()
    client = start(revision=STATELESS, state=tmp_path / "kept")
    text = client.text("ReadBgOutput", {"task_id": 1})
    assert ("begun" in text, "its server has ended" in text) == (is_killed, is_killed)
    assert "begun" not in client.text("ReadBgOutput", {"task_id": 1})


@pytest.mark.parametrize("rounds", [2, pytest.param(100, marks=pytest.mark.soak)])
def test_what_happened_before_a_kill_is_told_once_after_it(start: Start, tmp_path: Path, rounds: int) -> None:
    state, dice = tmp_path / "kept", random.Random(rounds)
    client = start(revision=STATELESS, state=state)
    cursor, number = first_cursor(client, "todo.changed"), 0
    for _ in range(rounds):
        answered = client.begin("events/list")
        for _ in range(9):
            number += 1
            arguments = {"action": "create", "query": f"task {number}"}
            answered = client.begin("tools/call", {"name": "TaskManager", "arguments": arguments})
            if dice.random() < 0.3:
                client.result(answered)
        time.sleep(dice.random() * 0.02)
        client.kill()
        client = start(revision=STATELESS, state=state)
    read = client.request("resources/read", {"uri": "task://list"})
    stored = [task["name"] for task in json.loads(read["contents"][0]["text"])["tasks"]]
    events = all_events(client, cursor)
    assert sorted(events) == sorted(stored)
    assert {name: ids for name, ids in events.items() if len(ids) > 1} == {}
    assert len({ids[0] for ids in events.values()}) == len(stored) >= rounds
