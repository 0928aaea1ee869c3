"""Two servers that share their sessions: any of them answers any request."""

import json
import os
import secrets
import signal
import time
from collections.abc import Iterator

import pytest

from tests.clients.raw_client import STATELESS, eventually
from tests.clients.raw_http_client import POSTED
from tests.clients.round_robin import RoundRobin
from tests.clients.surviving_client import META
from tests.server.features.telemetry.test_metrics import told
from tests.servers.postgres import Postgres
from tests.servers.replicas import Replicas, running_replicas

FORMS: dict[str, object] = {"elicitation": {}}
DEAD = 5.0  # seconds in which a killed server is found dead and its stream ends


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[Replicas]:
    with running_replicas(tmp_path_factory.mktemp("replicas"), postgres) as servers:
        yield servers


@pytest.fixture
def client(replicas: Replicas) -> RoundRobin:
    opened = RoundRobin(replicas.sites)
    opened.ready()
    return opened


def test_each_of_twenty_calls_in_turn_is_answered(client: RoundRobin) -> None:
    assert [client.call("echo", {"text": str(number)}) for number in range(20)] == [str(n) for n in range(20)]


def test_a_session_that_a_replica_does_not_know_is_404(replicas: Replicas, client: RoundRobin) -> None:
    for site in replicas.sites:
        headers = {**client.headers, "Mcp_Session_Id": secrets.token_urlsafe(24)}
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        response, _, _ = site.ask("POST", "/mcp", ping, **headers)
        assert response.status == 404


def test_the_working_directory_follows_to_the_other(client: RoundRobin) -> None:
    client.call("Bash", {"command": "mkdir -p here && cd here"}, at=0)
    assert client.call("Bash", {"command": "basename $PWD"}, at=1).strip() == "here"
    client.call("Bash", {"command": "cd .."}, at=1)
    assert client.call("Bash", {"command": "basename $PWD"}, at=0).strip() != "here"
    assert client.call("Bash", {"command": "basename ~-"}, at=0).strip() == "here"
    client.call("Bash", {"command": "cd /; cd - >/dev/null"}, at=0)
    assert client.call("Bash", {"command": "echo ~-"}, at=1).strip() == "/"


def test_the_working_directory_of_a_client_without_a_session_follows_too(replicas: Replicas) -> None:
    def call(at: int, command: str) -> str:
        params = {"name": "Bash", "arguments": {"command": command}, "_meta": META}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {"Mcp_Protocol_Version": STATELESS, "Mcp_Method": "tools/call", "Mcp_Name": "Bash"}
        _, _, answer = replicas.sites[at].ask("POST", "/mcp", message, **headers)
        return str(answer["result"]["content"][0]["text"]).strip()

    for number in range(6):
        folder = f"folder-{number}"
        assert not call(number % 2, "pwd").endswith(folder)
        call(number % 2, f"cd; mkdir {folder}; cd {folder}")
        assert call(1 - number % 2, "pwd").endswith(folder)


def test_a_plan_that_was_entered_at_one_holds_back_bash_at_the_other(client: RoundRobin) -> None:
    client.call("PlanMode", {"action": "enter", "goal": "look only"}, at=0)
    assert "plan" in client.call("Bash", {"command": "touch made"}, at=1).lower()
    assert "No such file" in client.call("Bash", {"command": "ls made"}, at=0)
    client.call("PlanMode", {"action": "exit"}, at=1)
    client.call("Bash", {"command": "touch made"}, at=0)
    assert client.call("Bash", {"command": "ls made"}, at=1).strip() == "made"


def test_a_log_level_set_at_one_counts_at_the_other(client: RoundRobin) -> None:
    client.post("logging/setLevel", {"level": "error"}, at=0)
    reader = client.stream("talk", at=1)
    reader.answer()
    levels = [message["params"]["level"] for message in reader.messages if "method" in message]
    assert levels == ["error"]


def test_changes_at_both_at_once_are_all_there(client: RoundRobin) -> None:
    for turn in range(10):
        reader = client.stream("PlanMode", {"action": "enter", "goal": f"turn {turn}"}, at=turn % 2)
        level = ("error", "debug")[turn % 2]
        client.post("logging/setLevel", {"level": level}, at=1 - turn % 2)
        reader.answer()
        for at in (0, 1):
            assert f"turn {turn}" in client.call("PlanMode", {"action": "status"}, at=at)
            talk = client.stream("talk", at=at)
            talk.answer()
            assert len(talk.messages) == (2 if level == "error" else 4)
        client.call("PlanMode", {"action": "exit"})


def test_a_question_of_one_is_answered_at_the_other(replicas: Replicas) -> None:
    client = RoundRobin(replicas.sites, capabilities=FORMS)
    client.ready(at=1)
    for at in (0, 1):
        reader = client.stream("ask_name", at=at)
        question = reader.wait(lambda message: message.get("method") == "elicitation/create")
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"name": "Ada"}}}
        response, _, _ = replicas.sites[1 - at].ask("POST", "/mcp", answer, **client.headers)
        assert response.status == 202
        assert reader.answer()["result"]["content"][0]["text"] == "Ada"


def test_a_call_is_cancelled_by_way_of_the_other(client: RoundRobin) -> None:
    reader = client.stream("wait", {"seconds": 60}, at=0, id="long")
    reader.wait(lambda message: message.get("method") == "notifications/progress")
    client.post("notifications/cancelled", {"requestId": "long"}, at=1, is_request=False)
    assert eventually(lambda: reader.has_ended)
    assert [message for message in reader.messages if "id" in message] == []


def test_delete_ends_the_session_and_its_work_everywhere(replicas: Replicas, client: RoundRobin) -> None:
    reader = client.stream("wait", {"seconds": 60}, at=0)
    reader.wait(lambda message: message.get("method") == "notifications/progress")
    response, _, _ = replicas.sites[1].ask("DELETE", "/mcp", **client.headers)
    assert response.status == 204
    assert eventually(lambda: reader.has_ended)
    assert [client.post("ping", at=at)[0].status for at in (0, 1)] == [404, 404]


def test_a_stream_is_resumed_at_the_other_while_its_call_goes_on(client: RoundRobin) -> None:
    reader = client.stream("wait", {"seconds": 2}, at=0)
    reader.wait(lambda message: message.get("method") == "notifications/progress")
    reader.close()
    back = client.listen(at=1, after=reader.last_id())
    assert back.answer()["result"]["content"][0]["text"] == "waited"
    assert [message for message in back.messages if "method" in message] == []  # the progress was received
    again = client.listen(at=1, after=reader.events[0]["id"])
    assert len(again.wait(lambda message: "id" in message)) and len(again.messages) == 2


def test_a_stream_whose_reader_is_still_there_moves(client: RoundRobin) -> None:
    reader = client.stream("wait", {"seconds": 2}, at=0)
    reader.wait(lambda message: message.get("method") == "notifications/progress")
    back = client.listen(at=1, after=reader.last_id())
    assert back.answer()["result"]["content"][0]["text"] == "waited"
    assert [message for message in reader.messages if "id" in message] == []


def test_unrequested_messages_reach_the_get_stream_wherever_it_is(client: RoundRobin) -> None:
    reader = client.listen(at=1)
    reader.wait_open()
    client.call("SetCallback", callback("tea"), at=0)
    assert "tea" in str(reader.wait(lambda message: message.get("method") == "notifications/message"))
    assert len(reader.messages) == 1


def test_unrequested_messages_wait_for_a_get_stream_anywhere(client: RoundRobin) -> None:
    client.call("SetCallback", callback("cake"), at=0)
    assert eventually(lambda: "cake" in client.call("PlanMode", {"action": "status"}, at=0))
    reader = client.listen(at=1)
    assert "cake" in str(reader.wait(lambda message: message.get("method") == "notifications/message"))


def test_a_get_stream_moves_back_and_forth(client: RoundRobin) -> None:
    first = client.listen(at=0)
    first.wait_open()
    client.call("SetCallback", callback("one"), at=1)
    first.wait(lambda message: "one" in str(message))
    first.close()
    second = client.listen(at=1, after=first.last_id())
    second.wait_open()
    client.call("SetCallback", callback("two"), at=0)
    second.wait(lambda message: "two" in str(message))
    second.close()
    third = client.listen(at=0, after=first.last_id())
    third.wait_open()
    client.call("SetCallback", callback("three"), at=1)
    third.wait(lambda message: "three" in str(message))
    assert third.status == 200


def callback(message: str) -> dict[str, object]:
    return {"action": "set", "message": message, "delay_seconds": 1, "repeat_count": 1}


def test_a_subscription_made_at_one_is_notified_where_the_client_reads(client: RoundRobin) -> None:
    reader = client.listen(at=1)
    reader.wait_open()
    uri = "task://list"
    assert "result" in client.post("resources/subscribe", {"uri": uri}, at=0)[2]
    client.post("ping", at=1)
    client.call("touch", {"uri": uri}, at=1)
    updated = reader.wait(lambda message: message.get("method") == "notifications/resources/updated")
    assert updated["params"]["uri"] == uri
    assert len(reader.messages) == 1


def test_a_post_of_http_and_sse_reaches_its_stream_by_way_of_the_other(replicas: Replicas) -> None:
    first, second = replicas.sites
    connection = first.connect()
    connection.request("GET", "/sse", headers={"Accept": "text/event-stream"})
    response = connection.getresponse()
    path = ""
    while not path:
        line = response.readline().decode()
        path = line.removeprefix("data: ").strip() if line.startswith("data: ") else ""
    client = {"name": "sse", "version": "1"}
    params = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": client}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    assert second.ask("POST", path, message)[0].status == 202
    while not (line := response.readline().decode()).startswith("data: {"):
        pass
    assert json.loads(line[6:])["result"]["protocolVersion"] == "2024-11-05"
    assert second.ask("POST", path.replace(path[-4:], "AAAA"), message)[0].status == 404
    connection.close()
    forged = "/messages?session_id=00000000.unknown"
    assert second.ask("POST", forged, message)[0].status in (404, 503)


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[Replicas]:
    """Servers that a test kills."""
    with running_replicas(tmp_path_factory.mktemp("own"), postgres) as servers:
        yield servers


def test_kill_9_costs_no_session_and_each_call_ends(own: Replicas) -> None:
    client = RoundRobin(own.sites)
    ready_later = RoundRobin(own.sites, at=0)
    client.ready()
    may_repeat = client.stream("wait", {"seconds": 3}, at=0, id="again")
    changes = client.stream("Bash", {"command": "sleep 60"}, at=0, id="once")
    for reader in (may_repeat, changes):
        reader.wait_id()
    own.sites[0].kill()
    began = time.monotonic()
    assert client.call("echo", {"text": "still here"}, at=1) == "still here"
    ready_later.ready(at=1)
    assert ready_later.call("echo", {"text": "me too"}, at=1) == "me too"
    back = client.listen(at=1, after=changes.last_id())
    error = back.answer(DEAD)["error"]
    assert error["code"] == -32603 and "may or may not have taken effect" in error["message"]
    assert time.monotonic() - began < DEAD
    again = client.listen(at=1, after=may_repeat.last_id())
    assert again.answer(DEAD)["result"]["content"][0]["text"] == "waited"


def test_a_replica_that_ends_hands_its_sessions_over(own: Replicas) -> None:
    client = RoundRobin(own.sites)
    client.ready()
    reader = client.stream("Bash", {"command": "sleep 60"}, at=0)
    reader.wait_id()
    client.call("Bash", {"command": "mkdir -p kept && cd kept"}, at=0)
    reader.close()
    assert own.sites[0].stop() == 0
    assert client.call("Bash", {"command": "basename $PWD"}, at=1).startswith("kept\n")
    back = client.listen(at=1, after=reader.last_id())
    assert "goes on" in str(back.answer(DEAD)["result"])  # its answer was written before the end
    own.restart(0)
    client.sites = own.sites
    assert [client.call("Bash", {"command": "basename $PWD"}, at=at).strip() for at in (0, 1)] == ["kept", "kept"]


def test_an_answer_to_a_dead_replica_is_accepted_and_dropped(own: Replicas) -> None:
    client = RoundRobin(own.sites, capabilities=FORMS)
    client.ready()
    reader = client.stream("ask_name", at=0)
    question = reader.wait(lambda message: message.get("method") == "elicitation/create")
    own.sites[0].kill()
    answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"name": "Ada"}}}
    assert own.sites[1].ask("POST", "/mcp", answer, **client.headers)[0].status == 202
    assert client.call("echo", {"text": "on"}, at=1) == "on"


def test_a_frozen_replica_ends_when_it_wakes_up_and_its_session_goes_on(own: Replicas) -> None:
    client = RoundRobin(own.sites)
    client.ready()
    reader = client.stream("Bash", {"command": "sleep 60"}, at=0)
    reader.wait_id()
    os.kill(own.sites[0].process.pid, signal.SIGSTOP)
    back = client.listen(at=1, after=reader.last_id())
    assert "may or may not have taken effect" in back.answer(2 * DEAD)["error"]["message"]
    os.kill(own.sites[0].process.pid, signal.SIGCONT)
    assert eventually(lambda: own.sites[0].process.poll() == 1)
    assert "found it dead" in own.sites[0].log()


def test_calls_without_a_session_go_on_without_redis(own: Replicas) -> None:
    with own.redis.stopped():
        for site in own.sites:
            meta = {"_meta": META}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
            message |= {"params": {"name": "echo", "arguments": {"text": "on"}, **meta}}
            headers = {"Mcp_Protocol_Version": STATELESS, "Mcp_Method": "tools/call", "Mcp_Name": "echo"}
            response, content, answer = site.ask("POST", "/mcp", message, **headers)
            assert response.status == 200 and answer["result"]["content"][0]["text"] == "on", content


def ping_with_a_late_body(client: RoundRobin, at: int) -> bytes:
    """Return the answer to a ping whose body is sent after the server waits for it."""
    body = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    lines = {**POSTED, **{name.replace("_", "-"): value for name, value in client.headers.items()}}
    lines |= {"Host": "localhost", "Content-Length": str(len(body)), "Expect": "100-continue", "Connection": "close"}
    head = "POST /mcp HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
    with client.sites[at].socket() as connection, connection.makefile("rb") as stream:
        connection.sendall(head.encode())
        assert stream.readline() == b"HTTP/1.1 100 Continue\r\n"
        connection.sendall(body)
        return stream.read()


def test_redis_away_is_503_that_names_it_and_flushed_is_404(own: Replicas) -> None:
    client = RoundRobin(own.sites)
    client.ready()
    found = told(own.sites[0])
    assert found["toolgate_bus_up"] == found["toolgate_database_up"] == {(): 1.0}
    assert 0 <= found["toolgate_bus_lease_age_seconds"][()] < 3 and found["toolgate_bus_dropped_total"] == {(): 0.0}
    with own.redis.stopped():
        for at in (0, 1):
            began = time.monotonic()
            response, content, _ = client.post("ping", at=at)
            assert response.status == 503 and b"Redis at 127.0.0.1" in content
            assert b"HTTP/1.1 503" in ping_with_a_late_body(client, at)
            assert time.monotonic() - began < 6
        assert eventually(lambda: own.sites[0].ask("GET", "/ready")[0].status == 503)
        assert b"Redis" in own.sites[0].ask("GET", "/ready")[1]
        found = told(own.sites[0])
        assert found["toolgate_bus_up"] == {(): 0.0} and found["toolgate_bus_lease_age_seconds"][()] > 3
    assert eventually(lambda: own.sites[0].ask("GET", "/ready")[0].status == 200)
    for at in (0, 1):  # each server finds it back by itself
        assert eventually(lambda at=at: client.post("ping", at=at)[0].status == 200)
    assert client.call("echo", {"text": "back"}, at=1) == "back"
    own.redis.run("FLUSHALL")
    assert [client.post("ping", at=at)[0].status for at in (0, 1)] == [404, 404]
    new = RoundRobin(own.sites)
    new.ready()
    assert [new.call("echo", {"text": "new"}) for _ in range(4)] == ["new"] * 4
