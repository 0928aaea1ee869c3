"""Streamable HTTP through the real process: paths, statuses, sessions, and the stateless era's headers."""

import base64
import contextlib
import http.client
import json
import os
from typing import Any

import pytest

from tests.clients.raw_client import REVISIONS, STATELESS, WITH_SESSION, eventually, processes_with
from tests.clients.raw_http_client import POSTED, Http, Site, events

PREFIX = "io.modelcontextprotocol/"
HELLO = {"capabilities": {}, "clientInfo": {"name": "tests", "version": "1"}}


def request(method: str, params: dict[str, Any] | None = None, id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}


def note(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def opened(site: Site, revision: str = "2025-11-25", path: str = "/mcp", **capabilities: Any) -> str:
    """Return the id of a new session."""
    hello = request("initialize", {**HELLO, "capabilities": capabilities, "protocolVersion": revision})
    response, _, answer = site.ask("POST", path, hello)
    assert (response.status, answer["result"]["protocolVersion"]) == (200, revision)
    session = response.getheader("mcp-session-id")
    assert session is not None
    assert site.ask("POST", path, note("notifications/initialized"), mcp_session_id=session)[0].status == 202
    return session


def modern(
    method: str, params: dict[str, Any] | None = None, id: Any = 1, **meta: Any
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a request of the stateless era and its headers."""
    envelope = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": {}, **meta}
    body = request(method, {**(params or {}), "_meta": envelope}, id)
    told = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": method}
    if "name" in body["params"]:
        told["Mcp-Name"] = body["params"]["name"]
    return body, told


def stream(
    site: Site, body: Any, headers: dict[str, str], method: str = "POST"
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = site.connect()
    data = None if body is None else json.dumps(body)
    connection.request(method, "/mcp", data, {**(POSTED if data else {"Accept": "text/event-stream"}), **headers})
    return connection, connection.getresponse()


# -- sessions


@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
def test_both_paths_serve_all_three_methods_without_a_redirect(shared: Site, path: str) -> None:
    session = opened(shared, path=path)
    response, content, _ = shared.ask("POST", path, request("ping"), mcp_session_id=session)
    assert (response.status, json.loads(content)["result"]) == (200, {})
    connection = shared.connect()
    connection.request("GET", path, headers={"Accept": "text/event-stream", "Mcp-Session-Id": session})
    response = connection.getresponse()
    assert (response.status, response.getheader("x-accel-buffering")) == (200, "no")
    assert next(events(response))["data"] == ""  # the first byte at once
    connection.close()
    assert shared.ask("DELETE", path, mcp_session_id=session)[0].status == 204
    assert shared.ask("POST", path, request("ping"), mcp_session_id=session)[0].status == 404


def test_session_ids_are_unguessable_visible_ascii(shared: Site) -> None:
    ids = {opened(shared) for _ in range(20)}
    assert len(ids) == 20
    assert all(len(id) >= 32 and all(0x21 <= ord(letter) <= 0x7E for letter in id) for id in ids)
    assert len({id[:4] for id in ids}) > 15


def test_a_session_id_is_asked_for_and_an_unknown_one_is_404(shared: Site) -> None:
    for method, body in (("POST", request("ping")), ("POST", note("notifications/x")), ("GET", None), ("DELETE", None)):
        assert shared.ask(method, "/mcp", body)[0].status == 400
        for unknown in ("nobody", "", "x" * 5_000, "a b"):
            assert shared.ask(method, "/mcp", body, mcp_session_id=unknown)[0].status == 404, (method, unknown)
    response, _, answer = shared.ask("POST", "/mcp", request("ping", id="mine"))
    assert (answer["id"], answer["error"]["code"]) == ("mine", -32600)
    assert response.getheader("mcp-session-id") is None


@pytest.mark.parametrize("revision", WITH_SESSION)
def test_any_known_version_header_of_the_era_is_taken_and_an_unknown_one_is_400(shared: Site, revision: str) -> None:
    session = opened(shared, revision)
    for version in WITH_SESSION:
        told = {"mcp_session_id": session, "mcp_protocol_version": version}
        assert shared.ask("POST", "/mcp", request("ping"), **told)[0].status == 200
        assert shared.ask("POST", "/mcp", note("notifications/x"), **told)[0].status == 202
    for version in ("1999-01-01", "garbage", ""):
        told = {"mcp_session_id": session, "mcp_protocol_version": version}
        for body in (request("ping"), note("notifications/x"), {"jsonrpc": "2.0", "id": 1, "result": {}}):
            assert shared.ask("POST", "/mcp", body, **told)[0].status == 400
        if version:
            assert shared.ask("GET", "/mcp", **told)[0].status == 400
            assert shared.ask("DELETE", "/mcp", **told)[0].status == 400
    assert shared.ask("DELETE", "/mcp", mcp_session_id=session)[0].status == 204


def test_initialize_may_carry_the_version_header_already(shared: Site) -> None:
    hello = request("initialize", {**HELLO, "protocolVersion": "2025-06-18"})
    assert shared.ask("POST", "/mcp", hello, mcp_protocol_version="2025-06-18")[0].status == 200


def test_notifications_and_responses_are_accepted_without_a_body(shared: Site) -> None:
    session = opened(shared)
    for body in (
        note("notifications/no_such_thing"),
        note("notifications/cancelled", requestId=99),
        {"jsonrpc": "2.0", "id": 99, "result": {}},
        {"jsonrpc": "2.0", "id": 99, "error": {"code": 1, "message": "no"}},
    ):
        response, content, _ = shared.ask("POST", "/mcp", body, mcp_session_id=session)
        assert (response.status, content) == (202, b"")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b"3", b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}'])
def test_a_body_that_is_no_message_is_400_with_and_without_a_session(shared: Site, body: bytes) -> None:
    for told in ({}, {"mcp_session_id": opened(shared)}, {"mcp_protocol_version": STATELESS}):
        response, _, answer = shared.ask("POST", "/mcp", body, **told)
        assert (response.status, answer["id"]) == (400, None)
        assert answer["error"]["code"] in (-32700, -32600)


def test_batches_are_for_2025_03_26_only(shared: Site) -> None:
    batch = [request("ping", id="a"), note("notifications/x"), request("no/such", id="b")]
    for revision in WITH_SESSION:
        response, _, answer = shared.ask("POST", "/mcp", batch, mcp_session_id=opened(shared, revision))
        if revision == "2025-03-26":
            assert response.status == 200
            assert {part["id"]: part.get("result", part.get("error", {}).get("code")) for part in answer} == {
                "a": {},
                "b": -32601,
            }
        else:
            assert (response.status, answer["id"], answer["error"]["code"]) == (400, None, -32600)
    session = opened(shared, "2025-03-26")
    only_notes = [note("notifications/x"), {"jsonrpc": "2.0", "id": 4, "result": {}}]
    assert shared.ask("POST", "/mcp", only_notes, mcp_session_id=session)[0].status == 202
    assert shared.ask("POST", "/mcp", batch, mcp_protocol_version=STATELESS)[0].status == 400


def test_a_batch_with_progress_is_one_stream_with_one_array_at_its_end(shared: Site) -> None:
    session = opened(shared, "2025-03-26")
    batch = [
        request("tools/call", {"name": "climb", "_meta": {"progressToken": 5}}, id=5),
        request("ping", id=6),
    ]
    connection, response = stream(shared, batch, {"Mcp-Session-Id": session})
    came = [json.loads(event["data"]) for event in events(response) if event.get("data")]
    connection.close()
    assert [message["method"] for message in came[:-1]] == ["notifications/progress"] * 5
    assert {part["id"] for part in came[-1]} == {5, 6}


def test_three_lists_at_once_on_one_session_are_answered(shared: Site) -> None:
    session = opened(shared)
    told = {"Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-03-26"}
    begun = [stream(shared, request("tools/list", id=n), told) for n in range(3)]
    for n, (connection, response) in enumerate(begun):
        assert json.loads(response.read())["id"] == n
        connection.close()


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
def test_a_question_comes_on_the_stream_of_its_call_and_is_answered_by_a_post(shared: Site, revision: str) -> None:
    hello = request("initialize", {**HELLO, "protocolVersion": revision, "capabilities": {"elicitation": {}}})
    session = shared.ask("POST", "/mcp", hello)[0].getheader("mcp-session-id") or ""
    shared.ask("POST", "/mcp", note("notifications/initialized"), mcp_session_id=session)
    standing, quiet = stream(shared, None, {"Mcp-Session-Id": session}, "GET")
    connection, response = stream(shared, request("tools/call", {"name": "ask_in_group"}), {"Mcp-Session-Id": session})
    came = (json.loads(event["data"]) for event in events(response) if event.get("data"))
    asked = next(came)
    assert asked["method"] == "elicitation/create"
    answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}
    assert shared.ask("POST", "/mcp", answer, mcp_session_id=session)[0].status == 202
    assert next(came)["result"]["content"][0]["text"] == "decline"
    assert next(came, None) is None
    shared.ask("DELETE", "/mcp", mcp_session_id=session)
    assert [event for event in events(quiet) if event.get("data")] == []
    connection.close()
    standing.close()


# -- the stateless era: metadata and headers


def test_a_stateless_request_needs_no_session_and_gets_none(shared: Site) -> None:
    body, told = modern("tools/call", {"name": "echo", "arguments": {"text": "hi"}})
    for more in ({}, {"Mcp-Session-Id": "whatever"}, {"Last-Event-ID": "1-1"}):
        response, _, answer = shared.ask("POST", "/mcp", body, **told, **more)
        assert (response.status, answer["result"]["content"][0]["text"]) == (200, "hi")
        assert response.getheader("mcp-session-id") is None


def test_get_and_delete_are_405_in_the_stateless_era(shared: Site) -> None:
    for method in ("GET", "DELETE"):
        for more in ({}, {"mcp_session_id": opened(shared)}):
            response, _, _ = shared.ask(method, "/mcp", mcp_protocol_version=STATELESS, **more)
            assert (response.status, response.getheader("allow")) == (405, "POST")


def ladder() -> list[tuple[str, dict[str, Any], dict[str, str | None], int, int | None]]:
    """Return name, changes to `_meta`, changes to the headers, status, code."""
    version = PREFIX + "protocolVersion"
    return [
        ("fine", {}, {}, 200, None),
        ("no client info needed", {PREFIX + "clientInfo": None}, {}, 200, None),
        ("no version", {version: ...}, {}, 400, -32602),
        ("no capabilities", {PREFIX + "clientCapabilities": ...}, {}, 400, -32602),
        ("capabilities of the wrong type", {PREFIX + "clientCapabilities": 3}, {}, 400, -32602),
        ("the header says another version", {version: "v999.0.0"}, {}, 400, -32020),
        ("the header is of the other era", {}, {"MCP-Protocol-Version": "2025-11-25"}, 400, -32020),
        ("no version header", {}, {"MCP-Protocol-Version": None}, 400, -32020),
        ("neither is served", {version: "v999.0.0"}, {"MCP-Protocol-Version": "v999.0.0"}, 400, -32022),
        ("no method header", {}, {"Mcp-Method": None}, 400, -32020),
        ("another method", {}, {"Mcp-Method": "tools/list"}, 400, -32020),
        ("another case", {}, {"Mcp-Method": "TOOLS/CALL"}, 400, -32020),
        ("a method in base64", {}, {"Mcp-Method": "=?base64?dG9vbHMvY2FsbA==?="}, 400, -32020),
        ("no name", {}, {"Mcp-Name": None}, 400, -32020),
        ("another name", {}, {"Mcp-Name": "plain"}, 400, -32020),
        ("a name in base64", {}, {"Mcp-Name": "=?base64?ZWNobw==?="}, 200, None),
        ("space around the name", {}, {"Mcp-Name": "  echo \t"}, 200, None),
        ("a name with bytes no header may have", {}, {"Mcp-Name": "\xe9cho"}, 400, -32020),
    ]


@pytest.mark.parametrize("case", ladder(), ids=lambda case: case[0])
def test_headers_and_metadata_are_held_against_the_body(shared: Site, case: Any) -> None:
    _, meta, changed, status, code = case
    body, told = modern("tools/call", {"name": "echo", "arguments": {"text": "hi"}}, id="given")
    envelope = {**body["params"]["_meta"], **meta}
    body["params"]["_meta"] = {name: value for name, value in envelope.items() if value not in (..., None)}
    headers = {name: value for name, value in {**told, **changed}.items() if value is not None}
    response, _, answer = shared.ask("POST", "/mcp", body, **headers)
    assert (response.status, answer["id"]) == (status, "given")
    assert answer.get("error", {}).get("code") == code
    if code == -32022:
        assert answer["error"]["data"] == {"supported": list(reversed(REVISIONS)), "requested": "v999.0.0"}


def test_a_request_without_meta_is_invalid_params(shared: Site) -> None:
    told = {"mcp_protocol_version": STATELESS, "mcp_method": "server/discover"}
    for params in ({}, {"_meta": {}}, {"_meta": 5}, {"_meta": None}):
        response, _, answer = shared.ask("POST", "/mcp", request("server/discover", params), **told)
        assert (response.status, answer["error"]["code"]) == (400, -32602)


def test_header_names_are_read_in_any_case_and_twice_only_when_they_agree(shared: Site) -> None:
    body, told = modern("tools/call", {"name": "echo", "arguments": {"text": "hi"}})
    for second, status in (("echo", 200), ("plain", 400)):
        with contextlib.closing(shared.connect()) as connection:
            connection.putrequest("POST", "/mcp")
            for name, value in {**POSTED, **told}.items():
                connection.putheader(name.upper(), value)
            connection.putheader("mcp-name", second)
            data = json.dumps(body).encode()
            connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)
            assert connection.getresponse().status == status


@pytest.mark.parametrize("method", ["no/such", "initialize", "ping", "logging/setLevel", "resources/subscribe"])
def test_an_unknown_method_of_the_stateless_era_is_404(shared: Site, method: str) -> None:
    body, told = modern(method)
    response, _, answer = shared.ask("POST", "/mcp", body, **told)
    assert (response.status, answer["id"], answer["error"]["code"]) == (404, 1, -32601)


def test_a_missing_capability_is_400(shared: Site) -> None:
    body, told = modern("tools/call", {"name": "ask_together", "arguments": {}})
    response, _, answer = shared.ask("POST", "/mcp", body, **told)
    assert (response.status, answer["error"]["code"]) == (400, -32021)
    assert answer["error"]["data"] == {"requiredCapabilities": {"roots": {}, "sampling": {}}}


def test_refusals_of_a_served_request_are_200(shared: Site) -> None:
    body, told = modern("tools/call", {"name": "no_such_tool"})
    response, _, answer = shared.ask("POST", "/mcp", body, **told)
    assert (response.status, answer["error"]["code"]) == (200, -32602)


def encoded(text: str) -> str:
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


@pytest.mark.parametrize(
    ("arguments", "told", "code"),
    [
        ({"region": "us-west1"}, {"Region": "us-west1"}, None),
        ({"region": "Hello"}, {"Region": "=?base64?SGVsbG8=?="}, None),
        ({"region": "SGVsbG8="}, {"Region": "SGVsbG8="}, None),
        ({"region": "=?base64?SGVsbG8="}, {"Region": "=?base64?SGVsbG8="}, None),
        ({"region": "=?base64?literal?="}, {"Region": encoded("=?base64?literal?=")}, None),
        ({"region": "Hello, 世界"}, {"Region": encoded("Hello, 世界")}, None),
        ({"region": " padded "}, {"Region": encoded(" padded ")}, None),
        ({"region": "line1\nline2"}, {"Region": encoded("line1\nline2")}, None),
        ({"region": ""}, {"Region": ""}, None),
        ({"region": "a"}, {"region": "a"}, None),
        ({"place": {"town": "x"}}, {"Town": "x"}, None),
        ({"limit": 42}, {"Limit": "42"}, None),
        ({"limit": 42}, {"Limit": "42.0"}, None),
        ({"limit": -7}, {"Limit": "-7"}, None),
        ({"limit": 9007199254740991}, {"Limit": "9007199254740991"}, None),
        ({"dry": True}, {"Dry": "true"}, None),
        ({}, {}, None),
        ({}, {"Unknown": "anything"}, None),
        ({"region": "test-value"}, {}, -32020),
        ({"region": "a"}, {"Region": "b"}, -32020),
        ({"region": "a"}, {"Region": "A"}, -32020),
        ({"region": "Hello"}, {"Region": "=?base64?SGVsbG8?="}, -32020),
        ({"region": "Hello"}, {"Region": "=?base64?SGVs!!!bG8=?="}, -32020),
        ({"region": "Hello"}, {"Region": "=?base64?/w==?="}, -32020),
        ({"region": "Hello"}, {"Region": "=?BASE64?SGVsbG8=?="}, -32020),
        ({"region": "é"}, {"Region": "é"}, -32020),
        ({}, {"Region": "a"}, -32020),
        ({"limit": 42}, {"Limit": "43"}, -32020),
        ({"limit": 1000}, {"Limit": "1_000"}, -32020),
        ({"limit": 9007199254740991}, {"Limit": "9007199254740992"}, -32020),
        ({"limit": 1}, {"Limit": "nan"}, -32020),
        ({"limit": 1}, {"Limit": "1e999999999"}, -32020),
        ({"dry": True}, {"Dry": "True"}, -32020),
        ({"dry": True}, {"Dry": "1"}, -32020),
        ({"place": {"town": "x"}}, {}, -32020),
    ],
)
def test_mirrored_parameters_must_say_what_the_body_says(
    shared: Site, arguments: dict[str, Any], told: dict[str, str], code: int | None
) -> None:
    body, headers = modern("tools/call", {"name": "mirror", "arguments": arguments})
    params = {f"Mcp-Param-{name}": value for name, value in told.items()}
    response, _, answer = shared.ask("POST", "/mcp", body, **headers, **params)
    assert answer.get("error", {}).get("code") == code, answer
    assert response.status == (400 if code else 200)


def test_the_sessions_era_knows_no_mirrored_parameters(shared: Site) -> None:
    call = request("tools/call", {"name": "mirror", "arguments": {"region": "a"}})
    response, _, answer = shared.ask("POST", "/mcp", call, mcp_session_id=opened(shared))
    assert (response.status, answer["result"]["isError"]) == (200, False)


# -- the stateless era: streams


def test_hanging_up_cancels_in_the_stateless_era_and_not_in_the_sessions_era(shared: Site) -> None:
    session = opened(shared)
    for seconds, stays in ((f"91.{os.getpid()}1", False), (f"92.{os.getpid()}1", True)):
        params = {"name": "Bash", "arguments": {"command": f"sleep {seconds}; true"}}
        if stays:
            body, told = request("tools/call", params, id="stays"), {"Mcp-Session-Id": session}
        else:
            body, told = modern("tools/call", params)
        connection, response = stream(shared, body, told)
        assert eventually(lambda seconds=seconds: bool(processes_with(seconds)))
        response.close()
        connection.close()
        if stays:
            assert shared.ask("POST", "/mcp", request("ping"), mcp_session_id=session)[0].status == 200
            assert processes_with(seconds)
            cancel = note("notifications/cancelled", requestId="stays")
            assert shared.ask("POST", "/mcp", cancel, mcp_session_id=session)[0].status == 202
        assert eventually(lambda seconds=seconds: not processes_with(seconds))


def test_hanging_up_before_anything_came_cancels_too(shared: Site) -> None:
    seconds = f"93.{os.getpid()}1"
    body, told = modern("tools/call", {"name": "Bash", "arguments": {"command": f"sleep {seconds}; true"}})
    connection = shared.connect()
    connection.request("POST", "/mcp", json.dumps(body), {**POSTED, **told})
    assert eventually(lambda: bool(processes_with(seconds)))
    connection.close()
    assert eventually(lambda: not processes_with(seconds))


def test_delete_of_the_session_kills_its_command(shared: Site) -> None:
    session = opened(shared)
    seconds = f"94.{os.getpid()}1"
    body = request("tools/call", {"name": "Bash", "arguments": {"command": f"sleep {seconds}; true"}})
    connection, response = stream(shared, body, {"Mcp-Session-Id": session})
    assert eventually(lambda: bool(processes_with(seconds)))
    assert shared.ask("DELETE", "/mcp", mcp_session_id=session)[0].status == 204
    assert [event for event in events(response) if event.get("data")] == []
    assert eventually(lambda: not processes_with(seconds))
    connection.close()


def test_a_subscription_is_acknowledged_first_and_carries_its_id(shared: Site) -> None:
    wanted = {"toolsListChanged": True, "promptsListChanged": True}
    body, told = modern("subscriptions/listen", {"notifications": wanted}, id="sub")
    connection, response = stream(shared, body, told)
    came = events(response)
    assert next(came) == {"": "open"}
    assert json.loads(next(came)["data"]) == {
        "jsonrpc": "2.0",
        "method": "notifications/subscriptions/acknowledged",
        "params": {
            "notifications": {"toolsListChanged": True, "promptsListChanged": True},
            "_meta": {PREFIX + "subscriptionId": "sub"},
        },
    }
    connection.close()


def test_many_subscriptions_that_hang_up_leave_nothing(shared: Site) -> None:
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{shared.process.pid}/fd"))

    before = descriptors()
    body, told = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    open_ones = [stream(shared, body, told) for _ in range(50)]
    assert descriptors() >= 50
    for connection, response in open_ones:
        response.close()
        connection.close()
    assert eventually(lambda: descriptors() <= before + 2)


def test_lists_of_the_stateless_era_may_be_kept_privately(shared: Site) -> None:
    for method in ("tools/list", "server/discover"):
        body, told = modern(method)
        answer = shared.ask("POST", "/mcp", body, **told)[2]["result"]
        assert answer["ttlMs"] > 0
        assert (answer["cacheScope"], answer["resultType"]) == ("private", "complete")


def test_both_eras_share_one_connection(shared: Site) -> None:
    session = opened(shared)
    modern_body, told = modern("tools/call", {"name": "echo", "arguments": {"text": "hi"}})
    with contextlib.closing(shared.connect()) as connection:
        for _ in range(3):
            for body, more in ((modern_body, told), (request("ping"), {"Mcp-Session-Id": session})):
                connection.request("POST", "/mcp", json.dumps(body), {**POSTED, **more})
                assert "result" in json.loads(connection.getresponse().read())


def test_the_list_change_of_a_new_skill_reaches_a_session_and_a_subscription_once_each(listen: Any) -> None:
    site: Site = listen()
    session = opened(site)
    body, told = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id=3)
    begun = [stream(site, None, {"Mcp-Session-Id": session}, "GET"), stream(site, body, told)]
    heard: list[Any] = []
    for _, response in begun:
        next(events(response))
    skill = site.stderr.parent / "home" / ".claude" / "skills" / "brew"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: brew\ndescription: What brew is for.\n---\nDo it.\n")
    for _, response in begun:
        came = (json.loads(event["data"]) for event in events(response) if event.get("data"))
        heard.append(next(message for message in came if "acknowledged" not in message["method"]))
    assert heard == [
        {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"},
        {
            "jsonrpc": "2.0",
            "method": "notifications/tools/list_changed",
            "params": {"_meta": {PREFIX + "subscriptionId": 3}},
        },
    ]
    for connection, _ in begun:
        connection.close()


def test_a_client_sees_every_event_validated_on_its_own_stream(shared: Site) -> None:
    """The client itself: eight calls at once, each with its own stream."""
    client = Http(shared, "2025-11-25", {}, None, owned=False)
    client.shake_hands()
    ids = [client.begin("tools/call", {"name": "climb"}, progressToken=f"t{n}") for n in range(8)]
    assert [client.result(id)["content"][0]["text"] for id in ids] == ["up"] * 8
    assert len(client.notes("notifications/progress")) == 40
    assert client.close() == 0
