"""Calls that become tasks (extension io.modelcontextprotocol/tasks), as a client sees them on the wire."""

import contextlib
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import STATELESS, Refusal, Server, eventually, processes_with
from tests.clients.raw_task_client import KNOWS, TASKS, accepted, created, ended, get, text, until
from tests.servers.isolated_plugins import needs_isolation

Start = Callable[..., Server]
IMPATIENT = ("--hold", "4")  # a call that may become a task by itself does after half of that, at the latest
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
WORKING = {"taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs", "resultType", "_meta"}
DAY = 24 * 3600 * 1000


@pytest.fixture(params=["stdio", "http", pytest.param("isolated", marks=needs_isolation)])
def knowing(request: pytest.FixtureRequest, start: Start, listen: Callable[..., Any], tmp_path: Path) -> Start:
    """Return a client with tasks, on each transport of the stateless era, and one of a server with isolated plugins.

    In `make test` a test of what a plugin does itself has the third, too."""
    from tests.clients.raw_http_client import spoken
    from tests.conftest import PROBE

    def begin(*options: str, **how: Any) -> Server:
        how = {"revision": STATELESS, "capabilities": KNOWS, **how}
        if request.param == "stdio":
            return start(*PROBE, *options, **how)
        if request.param == "isolated":
            return start(*PROBE, "--isolate-plugins", *options, **how)
        context = spoken(listen(*options), "http", owned=True, **how)
        server = context.__enter__()
        request.addfinalizer(lambda: context.__exit__(None, None, None))
        return server

    return begin


def test_the_extension_is_declared_where_there_are_extensions(connect: Start) -> None:
    assert connect(revision=STATELESS).request("server/discover")["capabilities"]["extensions"][TASKS] == {}
    assert "extensions" not in connect(revision="2025-11-25").hello.get("capabilities", {})


def test_a_call_becomes_a_task_and_its_result_is_had_later(knowing: Start, tmp_path: Path) -> None:
    server = knowing()
    file = tmp_path / "go"
    result = server.call("job", {"file": str(file)})
    assert result.keys() == WORKING
    assert (result["resultType"], result["status"], result["ttlMs"]) == ("task", "working", DAY)
    assert ISO.fullmatch(result["createdAt"]) and result["lastUpdatedAt"] == result["createdAt"]
    working = get(server, result["taskId"])
    assert working == {**result, "resultType": "complete"}
    file.touch()
    done = ended(server, result["taskId"])
    assert done.keys() == {*WORKING, "result"}
    assert done["result"] == {
        "resultType": "complete",
        "content": [{"type": "text", "text": "task: True"}],
        "isError": False,
    }
    assert done["createdAt"] == result["createdAt"] <= done["lastUpdatedAt"]
    assert get(server, result["taskId"]) == done


def test_a_client_that_does_not_know_tasks_gets_the_result_itself(connect: Start, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    server = connect(revision=STATELESS)
    assert server.text("job", {"file": str(tmp_path / "go")}) == "task: False"
    with pytest.raises(Refusal) as caught:
        server.call("only_a_job")
    assert caught.value.code == -32021
    assert caught.value.data == {"requiredCapabilities": {"extensions": {TASKS: {}}}}


def test_the_sessions_era_knows_no_tasks(connect: Start, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    server = connect(revision="2025-11-25", capabilities=KNOWS)
    assert server.text("job", {"file": str(tmp_path / "go")}) == "task: False"
    assert "as a task only" in server.error("only_a_job")
    with pytest.raises(Refusal) as caught:
        server.request("tasks/get", {"taskId": "x"})
    assert caught.value.code == -32601


def test_the_wish_for_a_task_in_a_call_is_ignored(connect: Start) -> None:
    server = connect(revision=STATELESS, capabilities=KNOWS)
    params = {"name": "echo", "arguments": {"text": "hi"}, "task": {"ttl": 1}}
    assert server.request("tools/call", params)["content"][0]["text"] == "hi"


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
def test_each_method_wants_the_extension_declared_and_a_task_that_is_known(connect: Start, method: str) -> None:
    params = {"taskId": "nobody's", "inputResponses": {}}
    with pytest.raises(Refusal) as caught:
        connect(revision=STATELESS).request(method, params)
    assert caught.value.code == -32021
    assert caught.value.data == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    server = connect(revision=STATELESS, capabilities=KNOWS)
    with pytest.raises(Refusal) as caught:
        server.request(method, params)
    assert caught.value.code == -32602


@pytest.mark.parametrize("method", ["tasks/result", "tasks/list"])
def test_methods_that_the_extension_dropped_do_not_exist(connect: Start, method: str) -> None:
    with pytest.raises(Refusal) as caught:
        connect(revision=STATELESS, capabilities=KNOWS).request(method, {"taskId": "x"})
    assert caught.value.code == -32601


def test_an_id_is_a_string(start: Start) -> None:
    with pytest.raises(Refusal) as caught:
        start(revision=STATELESS, capabilities=KNOWS).request("tasks/get", {"taskId": 7})
    assert caught.value.code == -32602


def test_over_http_the_name_header_is_the_tasks_id(listen: Callable[..., Any]) -> None:
    site = listen()
    prefix = "io.modelcontextprotocol/"
    meta = {prefix + "protocolVersion": STATELESS, prefix + "clientCapabilities": KNOWS}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"taskId": "abc", "_meta": meta}}
    told = {"mcp_protocol_version": STATELESS, "mcp_method": "tasks/get"}
    codes = [
        site.ask("POST", "/mcp", message, **told, **name)[2]["error"]["code"]
        for name in ({}, {"mcp_name": "other"}, {"mcp_name": "abc"})
    ]
    assert codes == [-32020, -32020, -32602]


@pytest.mark.brief("stdio", "isolated")
def test_a_tool_that_says_no_is_completed_and_one_with_a_bug_has_failed(knowing: Start) -> None:
    server = knowing()
    refused = ended(server, created(server, "refuses_later"))
    assert refused["status"] == "completed"
    assert refused["result"]["isError"] is True
    for tool in ("crashes_later", "leaves_later"):
        failed = ended(server, created(server, tool))
        assert failed["status"] == "failed"
        assert failed.keys() == {*WORKING, "error", "statusMessage"}
        assert failed["error"]["code"] == -32603
        reference = re.fullmatch(r"internal error, reference ([0-9a-f]+)", failed["error"]["message"])
        assert reference and reference[1] in server.log()
        assert failed["statusMessage"] == failed["error"]["message"]
    assert "12345" not in str(server.messages)


def test_a_task_that_may_not_ask_has_failed_with_what_it_takes(connect: Start) -> None:
    server = connect(revision=STATELESS, capabilities={"extensions": {TASKS: {}}, "elicitation": {}})
    failed = ended(server, created(server, "asks_both_later"))
    assert failed["error"]["code"] == -32021
    assert failed["error"]["data"] == {"requiredCapabilities": {"roots": {}}}


def test_a_cancelled_task_stops_its_work_and_stays_cancelled(knowing: Start, tmp_path: Path) -> None:
    server = knowing(*IMPATIENT)
    id = created(server, "Bash", command="sleep 86411", timeout=600_000)
    assert processes_with("sleep 86411")
    acknowledged = server.request("tasks/cancel", {"taskId": id})
    assert acknowledged.keys() == {"resultType", "_meta"} and acknowledged["resultType"] == "complete"
    cancelled = get(server, id)
    assert cancelled.keys() == {*WORKING, "statusMessage"} and cancelled["status"] == "cancelled"
    assert eventually(lambda: not processes_with("sleep 86411"))
    assert server.request("tasks/cancel", {"taskId": id})["resultType"] == "complete"
    assert get(server, id) == cancelled
    assert "Traceback" not in server.log()


@pytest.mark.brief("stdio", "http")
def test_a_call_that_is_cancelled_before_it_is_a_task_is_never_one(knowing: Start) -> None:
    server = knowing()
    begun = server.begin("tools/call", {"name": "Bash", "arguments": {"command": "sleep 86412"}})
    assert eventually(lambda: bool(processes_with("sleep 86412")))
    server.notify("notifications/cancelled", {"requestId": begun})
    assert eventually(lambda: not processes_with("sleep 86412"))
    assert not (server.state / "flags" / "deferrals").exists()


def test_hanging_up_after_the_answer_does_not_cancel_the_task(listen: Callable[..., Any], tmp_path: Path) -> None:
    from tests.clients.raw_http_client import spoken

    site = listen()
    file = tmp_path / "go"
    with spoken(site, "http", revision=STATELESS, capabilities=KNOWS) as first:
        id = created(first, "job", file=str(file))
    with spoken(site, "http", revision=STATELESS, capabilities=KNOWS) as second:
        assert get(second, id)["status"] == "working"
        file.touch()
        assert text(ended(second, id)) == "task: True"


@pytest.mark.brief("stdio", "http")
def test_a_command_that_takes_long_becomes_a_task_and_runs_on_past_the_hold(knowing: Start, tmp_path: Path) -> None:
    server = knowing(*IMPATIENT)
    file = tmp_path / "go"
    command = f"echo begun; until [ -e {file} ]; do sleep 0.05; done; echo done"
    id = created(server, "Bash", command=command, timeout=600_000)
    assert eventually(lambda: get(server, id).get("statusMessage"))  # "begun", or how long it runs: past the hold
    file.touch()
    assert text(ended(server, id)) == "begun\ndone\n"


@pytest.mark.brief("stdio", "http")
def test_a_command_of_a_client_that_does_not_know_tasks_becomes_a_background_task(connect: Start) -> None:
    server = connect(*IMPATIENT, revision=STATELESS)
    assert "goes on" in server.text("Bash", {"command": "sleep 86413", "timeout": 600_000})


@pytest.mark.brief("stdio", "http")
def test_a_command_still_ends_with_its_timeout_as_a_task(knowing: Start) -> None:
    server = knowing(*IMPATIENT)
    id = created(server, "Bash", command="sleep 86414", timeout=3_000)
    done = ended(server, id)
    assert done["result"]["isError"] is True and "timed out after 3000 ms" in text(done)


@pytest.mark.brief("stdio", "http")
def test_a_tool_can_be_declared_to_become_a_task_when_it_takes_long(knowing: Start, tmp_path: Path) -> None:
    server = knowing(*IMPATIENT)
    file = tmp_path / "go"
    id = created(server, "slow", file=str(file))
    file.touch()
    assert text(ended(server, id)) == "there"
    assert server.text("slow", {"file": str(file)}) == "there"  # at once: no task


def test_a_call_is_held_until_it_is_a_task(connect: Start) -> None:
    server = connect(revision=STATELESS, capabilities=KNOWS)
    assert text(ended(server, created(server, "is_held"))) == "43.0 None"


@pytest.mark.brief("stdio", "http")
def test_news_comes_with_results_and_not_with_tasks(knowing: Start, tmp_path: Path) -> None:
    server = knowing()
    server.call("BackgroundBash", {"command": "true"})
    file = tmp_path / "go"
    id = created(server, "job", file=str(file))
    file.touch()
    assert len(ended(server, id)["result"]["content"]) == 1
    assert eventually(lambda: "Meanwhile" in server.text("echo", {"text": "x"}))


@pytest.mark.brief("stdio", "http")
def test_progress_becomes_the_status_and_nothing_follows_the_answer(knowing: Start, tmp_path: Path) -> None:
    server = knowing()
    file = tmp_path / "go"
    meta = {"progressToken": "p", "io.modelcontextprotocol/logLevel": "debug"}
    id = server.call("tells_later", {"file": str(file)}, **meta)["taskId"]
    assert eventually(lambda: get(server, id).get("statusMessage") == "half way")
    file.touch()
    done = ended(server, id)
    assert "statusMessage" not in done
    assert [note["message"] for note in server.notes("notifications/progress")] == ["before"]
    assert server.notes("notifications/message") == []


@pytest.mark.brief("stdio", "http")
def test_a_call_that_becomes_a_task_by_itself_says_how_it_goes_from_then_on(knowing: Start, tmp_path: Path) -> None:
    server = knowing(*IMPATIENT)
    file = tmp_path / "go"
    id = created(server, "tells_slowly", file=str(file))
    assert eventually(lambda: get(server, id).get("statusMessage") == "at it")
    file.touch()
    assert text(ended(server, id)) == "told"


def is_refused(server: Server, id: str) -> bool:
    try:
        get(server, id)
    except Refusal:
        return True
    return False


@pytest.mark.brief("http")
def test_a_busy_database_is_named_and_what_can_be_no_task_is_held(knowing: Start) -> None:
    server = knowing("--hold", "8")
    id = created(server, "only_a_job")
    ended(server, id)
    with contextlib.closing(sqlite3.connect(server.state / "state.db", isolation_level=None)) as other:
        assert eventually(lambda: other.execute("SELECT status FROM deferral").fetchall() == [("completed",)])
        other.execute("BEGIN IMMEDIATE")
        assert eventually(lambda: is_refused(server, id))  # until it is written down it is known without the database
        for method, params in (
            ("tasks/get", {"taskId": id}),
            ("subscriptions/listen", {"notifications": {"taskIds": [id]}}),
        ):
            with pytest.raises(Refusal, match="held by another process") as caught:
                server.request(method, params)
            assert caught.value.code == -32603
        assert server.text("holds_slowly") == "None 6.0"
        other.execute("ROLLBACK")
    assert text(get(server, id)) == "done"


def test_a_question_parks_the_task_and_its_answer_goes_on_where_it_was(knowing: Start) -> None:
    server = knowing()
    id = created(server, "asks_later")
    asked = until(server, id, "input_required")
    assert asked.keys() == {*WORKING, "inputRequests"}
    assert asked["inputRequests"]["who"]["params"]["message"] == "first?"
    assert get(server, id) == asked
    acknowledged = server.request("tasks/update", {"taskId": id, "inputResponses": {"who": accepted("Ada")}})
    assert acknowledged.keys() == {"resultType", "_meta"} and acknowledged["resultType"] == "complete"
    second = until(server, id, "input_required")
    ((key, request),) = second["inputRequests"].items()
    assert key != "who"  # a key is never used again
    assert request["params"]["message"] == "second?"
    server.request("tasks/update", {"taskId": id, "inputResponses": {"who": accepted("Eve"), key: accepted("Bob")}})
    assert text(ended(server, id)) == "Ada Bob"


@pytest.mark.brief("stdio", "http")
def test_of_several_questions_some_can_be_answered_first(knowing: Start) -> None:
    server = knowing()
    id = created(server, "asks_both_later")
    assert until(server, id, "input_required")["inputRequests"].keys() == {"who", "where"}
    server.request("tasks/update", {"taskId": id, "inputResponses": {"who": accepted("Ada"), "more": 7}})
    assert get(server, id)["inputRequests"].keys() == {"where"}
    with pytest.raises(Refusal) as caught:
        server.request("tasks/update", {"taskId": id, "inputResponses": {"where": {"roots": 7}}})
    assert caught.value.code == -32602
    with pytest.raises(Refusal) as caught:
        server.request("tasks/update", {"taskId": id, "inputResponses": None})
    assert caught.value.code == -32602
    server.request("tasks/update", {"taskId": id, "inputResponses": {"where": {"roots": []}}})
    assert text(ended(server, id)) == "Ada []"
    assert server.request("tasks/update", {"taskId": id, "inputResponses": {"who": accepted("Eve")}})


@pytest.mark.brief("stdio", "http")
def test_a_task_that_waits_for_an_answer_can_be_cancelled(knowing: Start) -> None:
    server = knowing()
    id = created(server, "asks_later")
    until(server, id, "input_required")
    server.request("tasks/cancel", {"taskId": id})
    cancelled = get(server, id)
    assert cancelled["status"] == "cancelled" and "inputRequests" not in cancelled


@pytest.mark.brief("stdio", "http")
def test_a_question_with_a_time_limit_goes_unanswered(knowing: Start) -> None:
    server = knowing()
    done = ended(server, created(server, "asks_soon_later"))
    assert done["result"]["isError"] is True and "no answer within 0.1 s" in text(done)


@pytest.mark.brief("stdio", "http")
def test_questions_before_the_task_end_the_call_as_ever(knowing: Start) -> None:
    server = knowing()
    first = server.call("asks_first")
    assert first["resultType"] == "input_required"
    params = {"name": "asks_first", "arguments": {}, "requestState": first["requestState"]}
    result = server.request("tools/call", {**params, "inputResponses": {"question-1": accepted("Ada")}})
    assert result.keys() == WORKING and result["resultType"] == "task"
    assert text(ended(server, result["taskId"])) == "hello Ada"


@pytest.mark.brief("stdio", "http")
def test_a_subscription_brings_each_change_of_the_tasks_it_names(knowing: Start, tmp_path: Path) -> None:
    server = knowing()
    file = tmp_path / "go"
    done = created(server, "only_a_job")
    ended(server, done)
    id = created(server, "job", file=str(file))
    other = created(server, "job", file=str(file))
    listening = server.begin("subscriptions/listen", {"notifications": {"taskIds": [id, "nobody's", done]}})
    acknowledged = server.wait(lambda said: said.get("method") == "notifications/subscriptions/acknowledged")
    assert acknowledged["params"]["notifications"] == {"taskIds": sorted([id, done])}
    file.touch()
    ended(server, other)
    server.wait(lambda said: said.get("params", {}).get("taskId") == id and said["params"]["status"] == "completed")
    notes = server.notes("notifications/tasks")
    tag = {"io.modelcontextprotocol/subscriptionId": listening}
    assert all(note["_meta"] == tag for note in notes)
    assert sorted((note["taskId"], note["status"]) for note in notes) == sorted(
        [(done, "completed"), (id, "working"), (id, "completed")]
    )
    told = notes[-1]
    told.pop("_meta")
    kept = get(server, id)
    assert {**told, "_meta": kept["_meta"], "resultType": "complete"} == kept


def test_a_subscription_to_tasks_wants_the_extension_declared(connect: Start) -> None:
    server = connect(revision=STATELESS)
    with pytest.raises(Refusal) as caught:
        server.request("subscriptions/listen", {"notifications": {"taskIds": ["x"]}})
    assert caught.value.code == -32021
    assert caught.value.data == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    with pytest.raises(Refusal) as caught:
        connect(revision=STATELESS, capabilities=KNOWS).request(
            "subscriptions/listen", {"notifications": {"taskIds": [7]}}
        )
    assert caught.value.code == -32602


@pytest.mark.brief("stdio", "http")
def test_a_result_too_large_to_keep_is_said_to_be(knowing: Start) -> None:
    server = knowing()
    failed = ended(server, created(server, "large_later", size=17 * 2**20))
    assert failed["status"] == "failed"
    assert "at most 16777216 are kept" in failed["error"]["message"]
