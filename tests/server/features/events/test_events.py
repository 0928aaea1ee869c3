"""Events by poll and by stream, on every transport and in both eras: what happens here wakes who waits for it."""

import contextlib
import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.event_client import Stream, data_of, first_cursor, poll, wait_for_event
from tests.clients.raw_client import ROOT, STATELESS, Refusal, Server, eventually
from tests.clients.raw_http_client import Site
from toolgate.server.features.events.sources.types import EVENTS

pytestmark = pytest.mark.pairs

Start = Callable[..., Server]
EXTENSION = "io.modelcontextprotocol/events"
DECLARED = {"extensions": {EXTENSION: {}}}
ERAS = pytest.mark.parametrize("revision", ["2025-11-25", STATELESS])


def refused(client: Server, method: str, params: dict[str, Any]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        client.request(method, params)
    return caught.value


# -- what is declared and listed


def test_events_are_declared_as_each_era_knows_them(connect: Start) -> None:
    modern = connect(revision=STATELESS).request("server/discover")["capabilities"]
    assert (modern["events"], modern["extensions"][EXTENSION]) == ({"listChanged": True}, {"listChanged": True})
    assert connect().hello["capabilities"]["events"] == {}


@ERAS
def test_types_are_listed_with_schemas_and_ways_of_delivery(connect: Start, revision: str) -> None:
    listed = connect(revision=revision).request("events/list")["events"]
    assert [type["name"] for type in listed] == sorted(type.name for type in EVENTS)
    assert all(type["delivery"] == ["poll", "push"] for type in listed)
    ended = next(type for type in listed if type["name"] == "command.ended")
    assert set(ended) == {"name", "description", "delivery", "inputSchema", "payloadSchema"}
    assert ended["inputSchema"]["properties"].keys() == {"id"}
    assert {"id", "exit_code", "last_lines"} <= ended["payloadSchema"]["properties"].keys()


def test_each_type_is_on_the_page() -> None:
    page = (ROOT / "docs" / "events.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| ((?:`\w+`(?:, )?)+) \|", page, re.M)
    told = {name: set(re.findall(r"\w+", arguments)) for name, arguments in rows}
    assert told == {type.name: set(type.input["properties"]) for type in EVENTS}


def test_a_type_that_tells_about_a_denied_tool_is_not_served(start: Start) -> None:
    client = start("--deny", "SetCallback", revision=STATELESS)
    assert "callback.fired" not in [type["name"] for type in client.request("events/list")["events"]]
    assert refused(client, "events/poll", {"name": "callback.fired"}).data == {"kind": "event"}


# -- parameters


@ERAS
def test_wrong_parameters_are_named(connect: Start, revision: str) -> None:
    client = connect(revision=revision)
    wrong = {
        "'name': expected `str`, got `int`": {"name": 7},
        "object missing required field `name`": {},
        "'arguments': expected `object | null`, got `array`": {"name": "command.ended", "arguments": []},
        "'maxEvents': expected `int` >= 1": {"name": "command.ended", "maxEvents": 0},
        "'maxAgeMs': expected `float` >= 0.0": {"name": "command.ended", "maxAgeMs": -1},
        "'cursor' was not issued by this server: start with null": {"name": "command.ended", "cursor": "Aaaa"},
        "'arguments' of file.changed: argument \"path\" is missing": {"name": "file.changed"},
    }
    for message, params in wrong.items():
        for method in ("events/poll", "events/stream"):
            refusal = refused(client, method, params)
            assert (refusal.code, refusal.message) == (-32602, message)


def test_an_unknown_type_is_not_found_by_the_number_that_the_client_knows(connect: Start) -> None:
    asked = {"name": "command.endet"}
    old, new = connect(revision=STATELESS), connect(revision=STATELESS, capabilities=DECLARED)
    for client, code in ((old, -32011), (new, -32023), (connect(), -32011)):
        refusal = refused(client, "events/poll", asked)
        assert (refusal.code, refusal.data) == (code, {"kind": "event"})
        assert refusal.message == "unknown event: 'command.endet'; did you mean command.ended?"


@pytest.mark.parametrize("path", ["/etc/passwd", "../..", "a\0b", "x" * 4_097])
def test_a_path_outside_the_workspace_is_not_watched(connect: Start, path: str) -> None:
    client = connect(revision=STATELESS)
    assert refused(client, "events/poll", {"name": "file.changed", "arguments": {"path": path}}).code == -32602


# -- poll and stream


@ERAS
def test_the_end_of_a_background_task_reaches_poll_and_stream_under_one_id(connect: Start, revision: str) -> None:
    client = connect(revision=revision, fresh=True)
    cursor = first_cursor(client, "command.ended")
    stream = Stream(client, "command.ended")
    assert stream.active["truncated"] is False
    client.call("BackgroundBash", {"command": "echo one; echo two >&2; exit 3"})
    event = stream.wait("event")
    payload = {key: event["data"][key] for key in ("id", "command", "status", "exit_code", "last_lines")}
    assert payload == {
        "id": 1,
        "command": "echo one; echo two >&2; exit 3",
        "status": "exited",
        "exit_code": 3,
        "last_lines": "one\ntwo",
    }
    page = poll(client, "command.ended", cursor)
    assert [found["eventId"] for found in page["events"]] == [event["eventId"]]
    assert (page["truncated"], page["hasMore"]) == (False, False)
    assert page["nextPollMs"] >= 1_000
    assert page.get("resultType") == ("complete" if revision == STATELESS else None)
    assert poll(client, "command.ended", event["cursor"])["events"] == []
    assert poll(client, "command.ended", page["cursor"])["events"] == []


def test_a_background_task_that_is_killed_has_ended_too(start: Start) -> None:
    client = start(revision=STATELESS)
    stream = Stream(client, "command.ended")
    client.call("BackgroundBash", {"command": "sleep 60"})
    assert "Meanwhile" not in client.text("KillBgTask", {"task_id": 1})
    assert stream.wait("event")["data"]["status"] == "killed"
    assert "Meanwhile" not in client.text("ListBgTasks")


@ERAS
def test_a_stream_that_is_cancelled_is_over(connect: Start, revision: str) -> None:
    client = connect(revision=revision, fresh=True)
    stream, other = Stream(client, "todo.changed"), Stream(client, "todo.changed")
    stream.cancel()
    client.call("TaskManager", {"action": "create", "query": "tidy up"})
    assert other.wait("event")["data"]["name"] == "tidy up"
    assert stream.all("event") == []


@ERAS
def test_arguments_filter(connect: Start, revision: str) -> None:
    client = connect(revision=revision, fresh=True)
    cursors = {id: first_cursor(client, "command.ended", {"id": id}) for id in (1, 2)}
    all = first_cursor(client, "command.ended")
    stream = Stream(client, "command.ended", {"id": 2})
    for word in ("one", "two"):
        client.call("BackgroundBash", {"command": f"echo {word}"})
    assert stream.wait("event")["data"]["last_lines"] == "two"
    assert eventually(lambda: len(poll(client, "command.ended", all)["events"]) == 2)
    for id, word in ((1, "one"), (2, "two")):
        found = data_of(poll(client, "command.ended", cursors[id], {"id": id}))
        assert [each["last_lines"] for each in found] == [word]


def test_a_poll_is_paged_in_order(start: Start) -> None:
    client = start(revision=STATELESS)
    cursor = first_cursor(client, "todo.changed")
    for number in range(5):
        client.call("TaskManager", {"action": "create", "query": f"task {number}"})
    names = list[str]()
    sizes = list[int]()
    while True:
        page = poll(client, "todo.changed", cursor, maxEvents=2)
        sizes.append(len(page["events"]))
        names += [each["name"] for each in data_of(page)]
        cursor = page["cursor"]
        if not page["hasMore"]:
            break
    assert (names, sizes) == ([f"task {number}" for number in range(5)], [2, 2, 1])


def test_a_stream_resumes_at_a_cursor_after_a_restart(tmp_path: Path, start: Start) -> None:
    client = start(revision=STATELESS, state=tmp_path / "kept")
    cursor = first_cursor(client, "todo.changed")
    client.call("TaskManager", {"action": "create", "query": "before"})
    assert client.close() == 0
    again = start(revision=STATELESS, state=tmp_path / "kept")
    stream = Stream(again, "todo.changed", cursor=cursor)
    assert (stream.active["cursor"], stream.active["truncated"]) == (cursor, False)
    assert stream.wait("event")["data"]["name"] == "before"
    again.call("TaskManager", {"action": "create", "query": "after"})
    assert stream.wait("event", 2)["data"]["name"] == "after"


def test_older_events_than_asked_for_are_skipped_and_that_is_told(start: Start) -> None:
    client = start(revision=STATELESS)
    cursor = first_cursor(client, "todo.changed")
    client.call("TaskManager", {"action": "create", "query": "tidy up"})
    assert len(poll(client, "todo.changed", cursor, maxAgeMs=60_000)["events"]) == 1
    page = poll(client, "todo.changed", cursor, maxAgeMs=0)
    assert (page["events"], page["truncated"]) == ([], True)


def test_events_beyond_the_limit_are_dropped_and_that_is_told(start: Start) -> None:
    client = start("--event-count", "3", revision=STATELESS)
    cursor = first_cursor(client, "todo.changed")
    for number in range(5):
        client.call("TaskManager", {"action": "create", "query": f"task {number}"})
    page = poll(client, "todo.changed", cursor)
    assert [each["name"] for each in data_of(page)] == ["task 2", "task 3", "task 4"]
    assert page["truncated"] is True
    assert poll(client, "todo.changed", page["cursor"])["truncated"] is False
    assert Stream(client, "todo.changed", cursor=cursor).active["truncated"] is True


def test_an_interest_ends_with_the_retention_time_and_a_later_poll_learns_of_the_gap(start: Start) -> None:
    client = start("--event-age", "1s", revision=STATELESS)
    cursor = first_cursor(client, "todo.changed")
    client.call("TaskManager", {"action": "create", "query": "tidy up"})
    assert eventually(lambda: poll(client, "todo.changed", cursor)["truncated"])
    assert eventually(lambda: poll(client, "todo.changed", cursor)["events"] == [])  # it is younger than the interest


def test_who_waits_for_nothing_leaves_no_trace(start: Start) -> None:
    client = start("--deny", "Bash(rm *)", revision=STATELESS)
    client.request("events/list")
    client.call("BackgroundBash", {"command": "true"})
    client.error("Bash", {"command": "rm x"})
    assert not (client.state / "state.db").exists()
    assert not (client.state / "flags").exists()
    assert not (client.state / "keys" / "event-cursor").exists()


@pytest.mark.soak  # 15 s, the interval
def test_a_heartbeat_comes_as_a_message(start: Start) -> None:
    stream = Stream(start(revision=STATELESS), "todo.changed")
    assert stream.wait("heartbeat", timeout=25)["cursor"] == stream.active["cursor"]


@ERAS
def test_streams_end_with_their_result_when_the_server_ends(connect: Start, revision: str) -> None:
    client = connect("--grace", "5", revision=revision)
    stream = Stream(client, "todo.changed")
    client.process.terminate()
    assert client.result(stream.id)["_meta"]["io.modelcontextprotocol/subscriptionId"] == stream.id


def test_a_stream_is_no_part_of_a_batch(start: Start) -> None:
    client = start(revision="2025-03-26")
    params = {"name": "todo.changed", "arguments": {}, "cursor": None}
    asked = {"jsonrpc": "2.0", "id": "s", "method": "events/stream", "params": params}
    polled = {"jsonrpc": "2.0", "id": "p", "method": "events/poll", "params": params}
    client.write(json.dumps([asked, polled]).encode() + b"\n")
    assert client.wait(lambda message: message.get("id") == "s")["error"]["code"] == -32600
    assert client.wait(lambda message: message.get("id") == "p")["result"]["events"] == []


def test_a_client_that_takes_no_streams_is_refused(listen: Callable[..., Site]) -> None:
    site = listen("--http")
    prefix = "io.modelcontextprotocol/"
    meta = {f"{prefix}protocolVersion": STATELESS, f"{prefix}clientCapabilities": {}}
    params = {"name": "todo.changed", "arguments": {}, "cursor": None, "_meta": meta}
    message = {"jsonrpc": "2.0", "id": 1, "method": "events/stream", "params": params}
    headers = {"mcp_protocol_version": STATELESS, "mcp_method": "events/stream", "accept": "application/json"}
    assert site.ask("POST", "/mcp", message, **headers)[0].status == 406


# -- what happens


@ERAS
def test_a_line_that_matches_is_told_once(connect: Start, revision: str) -> None:
    client = connect(revision=revision, fresh=True)
    arguments = {"pattern": "listen*on ????"}
    cursor = first_cursor(client, "command.output", arguments)
    client.call("BackgroundBash", {"command": "echo starting; echo listening on 8080; echo done; sleep 0.3; exit"})
    found = wait_for_event(client, "command.output", cursor, arguments)
    assert (found["pattern"], found["line"], found["id"]) == ("listen*on ????", "listening on 8080", 1)
    client.call("BackgroundBash", {"command": "printf 'now listening on 9090'"})
    stream = Stream(client, "command.output", arguments, cursor)
    assert stream.wait("event", 2)["data"]["line"] == "now listening on 9090"
    assert len(poll(client, "command.output", cursor, arguments)["events"]) == 2


def test_a_pattern_that_matches_every_line_is_told_a_hundred_times(start: Start) -> None:
    client = start(revision=STATELESS)
    cursor = first_cursor(client, "command.output", {"pattern": "*"})
    ends = first_cursor(client, "command.ended")
    client.call("BackgroundBash", {"command": "seq 1 5000"})
    wait_for_event(client, "command.ended", ends)
    stream = Stream(client, "command.output", {"pattern": "*"}, cursor)
    stream.wait("event", 100)
    client.call("BackgroundBash", {"command": "echo other"})
    assert stream.wait("event", 101)["data"]["line"] == "other"


def test_what_a_file_did_while_no_server_ran_is_a_gap(start: Start, tmp_path: Path) -> None:
    client = start(revision=STATELESS, state=tmp_path / "kept")
    cursor = first_cursor(client, "file.changed", {"path": "notes.txt"})
    assert client.close() == 0
    (tmp_path / "work" / "notes.txt").write_text("one")
    client = start(revision=STATELESS, state=tmp_path / "kept")
    page = poll(client, "file.changed", cursor, {"path": "notes.txt"})
    assert (page["events"], page["truncated"]) == ([], True)
    client.call("Bash", {"command": "echo two >> notes.txt"})
    found = wait_for_event(client, "file.changed", page["cursor"], {"path": "notes.txt"})
    assert found["changed"] == ["notes.txt"]
    assert poll(client, "file.changed", page["cursor"], {"path": "notes.txt"})["truncated"] is False


def test_two_servers_on_one_state_share_the_log(start: Start, tmp_path: Path) -> None:
    one = start(revision=STATELESS, state=tmp_path / "kept")
    cursor = first_cursor(one, "todo.changed")
    other = start(revision=STATELESS, state=tmp_path / "kept")
    other.call("TaskManager", {"action": "create", "query": "tidy up"})
    assert [each["name"] for each in data_of(poll(one, "todo.changed", cursor))] == ["tidy up"]


def test_changes_of_a_file_and_of_a_folder_are_told(start: Start, tmp_path: Path) -> None:
    client = start(revision=STATELESS)
    folder = Stream(client, "file.changed", {"path": "."})
    file = Stream(client, "file.changed", {"path": "notes.txt"})
    client.call("Bash", {"command": "echo one > notes.txt"})
    assert file.wait("event")["data"] == {"path": "notes.txt", "changed": ["notes.txt"], "removed": [], "is_cut": False}
    assert folder.wait("event")["data"] == {"path": ".", "changed": ["notes.txt"], "removed": [], "is_cut": False}
    (tmp_path / "work" / "notes.txt").write_text("twice as long")
    assert folder.wait("event", 2)["data"]["changed"] == ["notes.txt"]
    (tmp_path / "work" / "notes.txt").unlink()
    assert file.wait("event", 3)["data"]["removed"] == ["notes.txt"]


def test_a_callback_that_fires_is_told(start: Start) -> None:
    client = start(revision=STATELESS)
    cursor = first_cursor(client, "callback.fired")
    client.call("SetCallback", {"action": "set", "message": "tea", "delay_seconds": 1, "repeat_count": 1})
    found = wait_for_event(client, "callback.fired", cursor)
    assert found == {"callback_id": 0, "message": "tea", "left": 0}


def test_a_refusal_by_a_rule_is_told(start: Start) -> None:
    client = start("--deny", "Bash(rm *)", revision=STATELESS)
    cursor = first_cursor(client, "call.refused", {"tool": "Bash"})
    client.error("Bash", {"command": "rm x"})
    assert wait_for_event(client, "call.refused", cursor, {"tool": "Bash"}) == {"tool": "Bash", "rule": "Bash(rm *)"}


@pytest.mark.parametrize("rounds", [3, pytest.param(30, marks=pytest.mark.soak)])
def test_a_refusal_that_was_answered_is_told_after_a_kill(start: Start, tmp_path: Path, rounds: int) -> None:
    options = ("--deny", "Bash(rm *)")
    client = start(*options, revision=STATELESS, state=tmp_path / "kept")
    cursor = first_cursor(client, "call.refused")
    for _ in range(rounds):
        assert "rm" in client.error("Bash", {"command": "rm -r /"})
        client.kill()
        client = start(*options, revision=STATELESS, state=tmp_path / "kept")
    page = poll(client, "call.refused", cursor)
    assert (len(page["events"]), page["truncated"]) == (rounds, False)


def test_a_refusal_while_the_state_is_locked_is_answered_soon_and_told_later(start: Start, tmp_path: Path) -> None:
    client = start("--deny", "Bash(rm *)", revision=STATELESS, state=tmp_path / "kept")
    cursor = first_cursor(client, "call.refused")
    with contextlib.closing(sqlite3.connect(client.state / "state.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert "rm" in client.error("Bash", {"command": "rm -r /"})
        other.execute("ROLLBACK")
    assert wait_for_event(client, "call.refused", cursor)["tool"] == "Bash"


def test_the_steps_of_a_todo_are_told(start: Start) -> None:
    client = start(revision=STATELESS)
    stream = Stream(client, "todo.changed")
    for arguments in (
        {"action": "create", "query": "report"},
        {"action": "add", "query": "", "text": "collect"},
        {"action": "complete", "query": "", "step_id": 1},
        {"action": "complete", "query": ""},
    ):
        client.text("TaskManager", arguments)
    stream.wait("event", 4)
    told = [event["data"] for event in stream.all("event")]
    assert [(each["change"], each["step_id"], each["open_steps"]) for each in told] == [
        ("created", None, 0),
        ("step_added", 1, 1),
        ("step_completed", 1, 0),
        ("completed", None, 0),
    ]


def test_the_end_of_an_extensions_task_is_told(probe: Start) -> None:
    tasks = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    client = probe("--hold", "1", revision=STATELESS, capabilities=tasks)
    cursor = first_cursor(client, "task.ended")
    begun = client.call("Bash", {"command": "sleep 2; echo done"})
    assert begun["resultType"] == "task", json.dumps(begun)
    found = wait_for_event(client, "task.ended", cursor)
    assert found == {"task_id": begun["taskId"], "tool": "Bash", "status": "completed"}
