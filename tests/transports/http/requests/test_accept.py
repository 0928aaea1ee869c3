"""Accepted forms of an answer, and the one sent: a JSON body, a stream, or an error that names the forms."""

import json
from typing import Any

import pytest

from tests.clients.raw_client import eventually, processes_with
from tests.clients.raw_http_client import Site, events
from tests.transports.test_streamable_http import HELLO, modern, opened, request
from toolgate.transports.http.requests.post import ReplyForms, parse_accept

JSON = "application/json"
STREAM = "text/event-stream"
ERAS = ("sessions", "stateless")


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, ReplyForms.EITHER),
        ("", ReplyForms.EITHER),
        (" ", ReplyForms.EITHER),
        ("*/*", ReplyForms.EITHER),
        (f"{JSON}, {STREAM}", ReplyForms.EITHER),
        ("Application/JSON;q=0.9,TEXT/event-stream", ReplyForms.EITHER),
        ("application/*, text/*", ReplyForms.EITHER),
        (f"{JSON}; charset=utf-8, */*;q=0.1", ReplyForms.EITHER),
        (JSON, ReplyForms.JSON),
        ("application/*", ReplyForms.JSON),
        (f"{JSON}, {STREAM};q=0", ReplyForms.JSON),
        (f"*/*, {STREAM}; Q=0.000", ReplyForms.JSON),
        ("*/*;q=0.5, text/*;q=0", ReplyForms.JSON),
        (f"{JSON};q=1.000, {STREAM};q=high", ReplyForms.JSON),
        (STREAM, ReplyForms.STREAM),
        ("text/*;q=0.001", ReplyForms.STREAM),
        (f"*/*, {JSON};q=0", ReplyForms.STREAM),
        (f"text/*;q=0, {STREAM}", ReplyForms.STREAM),
        ("*/*;q=0", ReplyForms.NEITHER),
        (f"{JSON};q=0", ReplyForms.NEITHER),
        ("text/html, image/*", ReplyForms.NEITHER),
        ("json", ReplyForms.NEITHER),
        ("*", ReplyForms.NEITHER),
        ("application/jsonp, xapplication/json", ReplyForms.NEITHER),
        (";;,,=;q=,q=1", ReplyForms.NEITHER),
        (f"{JSON};q=-1, {STREAM};q=1e9", ReplyForms.NEITHER),
        ("é/*, " * 800 + JSON, ReplyForms.JSON),
        (",;" * 2_100 + f" , {JSON}", ReplyForms.NEITHER),
    ],
)
def test_an_accept_header_is_read_as_rfc_9110_says(accept: str | None, expected: ReplyForms) -> None:
    assert parse_accept(None if accept is None else accept.encode("latin-1")) is expected


def posted(
    site: Site, era: str, tool: str, arguments: dict[str, Any], accept: str | None, **capabilities: Any
) -> tuple[int, str | None, bytes]:
    """Return status, content type and body of a call with a progress token."""
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    if era == "sessions":
        body = request("tools/call", {**params, "_meta": {"progressToken": 1}}, id=7)
        told = {"mcp_session_id": opened(site, **capabilities)}
    else:
        body, told = modern("tools/call", params, progressToken=1)
    headers = {"content-type": JSON, **{name.replace("_", "-"): value for name, value in told.items()}}
    if accept is not None:
        headers["accept"] = accept
    connection = site.connect()
    try:
        connection.request("POST", "/mcp", json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.getheader("content-type"), response.read()
    finally:
        connection.close()


@pytest.mark.pairs
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("accept", [JSON, "application/*", f"*/*, {STREAM};q=0"])
def test_where_only_json_is_taken_a_call_with_progress_that_takes_long_is_one_body(
    shared: Site, era: str, accept: str
) -> None:
    status, kind, body = posted(shared, era, "wait", {"seconds": 1.3}, accept)
    assert (status, kind) == (200, JSON)
    assert json.loads(body)["result"]["content"][0]["text"] == "waited"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("accept", [None, "*/*", "application/*, text/*", f"{JSON}, {STREAM}"])
def test_where_both_are_taken_a_quick_answer_is_json_and_progress_makes_a_stream(
    shared: Site, era: str, accept: str | None
) -> None:
    assert posted(shared, era, "echo", {"text": "a"}, accept)[:2] == (200, JSON)
    status, kind, body = posted(shared, era, "wait", {"seconds": 0}, accept)
    assert (status, kind) == (200, STREAM)
    assert b"notifications/progress" in body and b"waited" in body


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("accept", [STREAM, "text/*", f"{STREAM}, {JSON};q=0"])
def test_where_only_a_stream_is_taken_a_quick_answer_is_one_too(shared: Site, era: str, accept: str) -> None:
    status, kind, body = posted(shared, era, "echo", {"text": "a word"}, accept)
    assert (status, kind) == (200, STREAM)
    assert b"a word" in body


@pytest.mark.parametrize("accept", [JSON, STREAM])
def test_a_session_is_opened_in_either_form(shared: Site, accept: str) -> None:
    response, content, _ = shared.ask(
        "POST", "/mcp", request("initialize", {**HELLO, "protocolVersion": "2025-11-25"}), accept=accept
    )
    assert (response.status, response.getheader("content-type")) == (200, accept)
    assert response.getheader("mcp-session-id") and b'"protocolVersion":"2025-11-25"' in content


def test_a_refusal_of_the_stateless_era_keeps_its_status_where_only_a_stream_is_taken(shared: Site) -> None:
    body, told = modern("no/such")
    response, _, answer = shared.ask("POST", "/mcp", body, accept=STREAM, **told)
    assert (response.status, answer["error"]["code"]) == (404, -32601)


def test_a_subscription_and_a_get_need_a_stream_and_say_so(shared: Site) -> None:
    body, told = modern("subscriptions/listen", {"notifications": {}})
    response, content, _ = shared.ask("POST", "/mcp", body, accept=JSON, **told)
    assert (response.status, content) == (
        406,
        b"subscriptions/listen is answered by a stream: Accept must list text/event-stream\n",
    )
    response, content, _ = shared.ask("GET", "/mcp", mcp_session_id=opened(shared), accept=f"*/*, {STREAM};q=0")
    assert (response.status, content) == (406, b"GET is answered by a stream: Accept must list text/event-stream\n")


def test_where_only_json_is_taken_a_question_is_not_asked_without_an_open_stream(shared: Site) -> None:
    status, kind, body = posted(shared, "sessions", "ask_together", {}, JSON, roots={}, sampling={}, elicitation={})
    assert (status, kind) == (200, JSON)
    result = json.loads(body)["result"]
    assert result["isError"] is True
    assert result["content"][0]["text"] == (
        "this client takes no text/event-stream for this call and has no stream open, so it can't be asked"
    )


def test_where_only_json_is_taken_a_question_goes_to_the_open_stream_of_the_session(shared: Site) -> None:
    session = opened(shared, elicitation={})
    standing, asking = shared.connect(), shared.connect()
    try:
        standing.request("GET", "/mcp", headers={"Accept": STREAM, "Mcp-Session-Id": session})
        coming = events(standing.getresponse())
        next(coming)
        call = request("tools/call", {"name": "ask_in_group", "arguments": {}}, id=7)
        told = {"content-type": JSON, "accept": JSON, "mcp-session-id": session}
        asking.request("POST", "/mcp", json.dumps(call), told)
        asked = next(message for event in coming if (message := json.loads(event.get("data") or "{}")))
        assert asked["method"] == "elicitation/create"
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}
        assert shared.ask("POST", "/mcp", answer, mcp_session_id=session, accept=JSON)[0].status == 202
        response = asking.getresponse()
        assert (response.status, response.getheader("content-type")) == (200, JSON)
        assert json.loads(response.read())["result"]["content"][0]["text"] == "decline"
    finally:
        standing.close()
        asking.close()


def test_hanging_up_where_only_json_is_taken_cancels_in_the_stateless_era(shared: Site) -> None:
    mark = "30.1415926"
    body, told = modern("tools/call", {"name": "Bash", "arguments": {"command": f"sleep {mark}"}})
    connection = shared.connect()
    headers = {"content-type": JSON, "accept": JSON, **{name.replace("_", "-"): told[name] for name in told}}
    connection.request("POST", "/mcp", json.dumps(body), headers)
    assert eventually(lambda: bool(processes_with(mark)))
    connection.close()
    assert eventually(lambda: not processes_with(mark))


def test_a_call_that_is_called_off_where_only_json_is_taken_has_no_body(shared: Site) -> None:
    session = opened(shared)
    connection = shared.connect()
    call = request("tools/call", {"name": "wait", "arguments": {"seconds": 30}}, id=7)
    told = {"content-type": JSON, "accept": JSON, "mcp-session-id": session}
    try:
        connection.request("POST", "/mcp", json.dumps(call), told)
        off = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        # until the call has begun there is nothing to cancel
        assert shared.ask("POST", "/mcp", request("ping"), mcp_session_id=session)[0].status == 200
        assert shared.ask("POST", "/mcp", off, mcp_session_id=session)[0].status == 202
        response = connection.getresponse()
        assert (response.status, response.read()) == (204, b"")
    finally:
        connection.close()
