"""Questions to the client in both eras through one API, and the limits of a sealed requestState."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.raw_client import STATELESS, Refusal, Server
from tests.clients.raw_http_client import Http

pytestmark = pytest.mark.pairs

Start = Callable[..., Server]
ALL = {"elicitation": {}, "sampling": {}, "roots": {}}
ANSWERS = {
    "elicitation/create": {"action": "accept", "content": {"name": "Ada"}},
    "sampling/createMessage": {
        "role": "assistant",
        "content": {"type": "text", "text": "an answer"},
        "model": "m",
    },
    "roots/list": {"roots": [{"uri": "file:///home"}]},
}


def answer(method: str, params: dict[str, Any]) -> Any:
    return ANSWERS[method]


def told_why(server: Server) -> bool:
    """Return whether a tool's refusal says that the client did not declare the capability, or that the question waits
    on the server's page."""
    told = server.error("ask")
    assert not server.notes("elicitation/create")
    return ("answer at http" if isinstance(server, Http) else "did not declare elicitation") in told


def accepted(name: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"name": name}}


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
def test_a_question_is_a_request_to_the_client_up_to_2025_11_25(connect: Start, revision: str) -> None:
    server = connect(fresh=True, revision=revision, capabilities=ALL, answer=answer)
    assert server.text("ask") == "accept {'name': 'Ada'} accept {'name': 'Ada'} 1"
    assert server.text("ask_together") == "Ada [{'uri': 'file:///home'}] an answer"
    assert server.text("ask_in_group") == "accept"


def test_an_unanswered_question_ends_with_its_own_time_limit_and_is_cancelled(connect: Start) -> None:
    server = connect(capabilities=ALL, answer=lambda method, params: None)
    assert "no answer within 0.2 s" in server.error("ask_soon")
    asked = server.wait(lambda message: message.get("method") == "elicitation/create")
    assert server.notes("notifications/cancelled")[0]["requestId"] == asked["id"]


def test_a_client_that_answers_with_an_error_or_nonsense_is_told_apart_from_one_that_declines(
    connect: Start,
) -> None:
    assert "could not answer" in connect(capabilities=ALL).error("ask_soon")


def test_an_answer_of_no_known_shape_is_no_answer(connect: Start) -> None:
    server = connect(capabilities=ALL, answer=lambda method, params: {"action": "shrug"})
    assert "no shape" in server.error("ask_soon")


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_a_client_that_did_not_declare_it_is_not_asked(connect: Start, revision: str) -> None:
    assert told_why(connect(revision=revision))


def test_elicitation_does_not_exist_before_2025_06_18(connect: Start) -> None:
    assert told_why(connect(revision="2025-03-26", capabilities=ALL, answer=answer))


def test_a_missing_capability_is_an_error_with_what_is_required_in_the_stateless_era(connect: Start) -> None:
    server = connect(revision=STATELESS, capabilities={"elicitation": {}})
    with pytest.raises(Refusal) as caught:
        server.call("ask_together")
    assert caught.value.code == -32021
    assert caught.value.data == {"requiredCapabilities": {"roots": {}, "sampling": {}}}


def test_a_client_that_only_knows_urls_can_not_be_asked_by_form(connect: Start) -> None:
    assert told_why(connect(revision="2025-11-25", capabilities={"elicitation": {"url": {}}}, answer=answer))


def test_a_client_of_2025_11_25_has_a_link_opened_and_hears_that_it_is_done(connect: Start) -> None:
    asked: list[dict[str, Any]] = []

    def open_link(method: str, params: dict[str, Any]) -> Any:
        asked.append(params)
        return {"action": "accept"}

    server = connect(fresh=True, revision="2025-11-25", capabilities={"elicitation": {"url": {}}}, answer=open_link)
    assert server.text("ask_link") == "accept"
    (params,) = asked
    assert {**params, "elicitationId": ""} == {
        "mode": "url",
        "url": "https://there.example/",
        "message": "Open it",
        "elicitationId": "",
    }
    (done,) = server.notes("notifications/elicitation/complete")
    assert done == {"elicitationId": params["elicitationId"]}


def test_a_link_ends_the_call_in_the_stateless_era_without_an_id(connect: Start) -> None:
    server = connect(revision=STATELESS, capabilities={"elicitation": {"url": {}}})
    first = server.call("ask_link")
    params = {"mode": "url", "url": "https://there.example/", "message": "Open it"}
    assert first["inputRequests"] == {"link": {"method": "elicitation/create", "params": params}}
    second = retry(server, "ask_link", first, {"link": {"action": "decline"}})
    assert second["content"][0]["text"] == "decline"


@pytest.mark.parametrize(
    ("revision", "declared"), [("2025-11-25", {}), ("2025-11-25", {"form": {}}), ("2025-06-18", {"url": {}})]
)
def test_a_client_that_opens_no_links_is_sent_none(connect: Start, revision: str, declared: dict[str, Any]) -> None:
    server = connect(revision=revision, capabilities={"elicitation": declared}, answer=answer)
    assert "did not declare elicitation" in server.error("ask_link")
    assert not server.notes("elicitation/create")


def test_a_question_that_no_page_can_ask_needs_the_clients_capability(connect: Start) -> None:
    told = connect(revision="2025-11-25", answer=answer).error("ask_together")
    assert "did not declare" in told and "roots, sampling" in told


def test_a_question_ends_the_call_in_the_stateless_era_and_the_retry_runs_through(connect: Start) -> None:
    server = connect(fresh=True, revision=STATELESS, capabilities=ALL)
    first = server.call("ask")
    assert first["resultType"] == "input_required"
    assert list(first["inputRequests"]) == ["question-1"]
    second = retry(server, "ask", first, {"question-1": accepted("Ada")})
    assert list(second["inputRequests"]) == ["second"]
    assert second["requestState"] != first["requestState"]
    third = retry(server, "ask", second, {"second": accepted("Bob")})
    # the first answer and the result of `once` came back inside the state
    assert third["content"][0]["text"] == "accept {'name': 'Ada'} accept {'name': 'Bob'} 1"
    assert server.call("ask")["resultType"] == "input_required"


def retry(server: Server, tool: str, before: dict[str, Any], responses: Any, **changed: Any) -> dict[str, Any]:
    params = {
        "name": tool,
        "arguments": {},
        "inputResponses": responses,
        "requestState": before["requestState"],
        **changed,
    }
    result: dict[str, Any] = server.request("tools/call", params)
    return result


def test_several_questions_at_once_are_one_result(connect: Start) -> None:
    server = connect(revision=STATELESS, capabilities=ALL)
    first = server.call("ask_together")
    assert set(first["inputRequests"]) == {"who", "where", "what"}
    part = {"who": accepted("Ada"), "where": ANSWERS["roots/list"]}
    second = retry(server, "ask_together", first, part)
    assert set(second["inputRequests"]) == {"what"}
    third = retry(server, "ask_together", second, {"what": ANSWERS["sampling/createMessage"]})
    assert third["content"][0]["text"] == "Ada [{'uri': 'file:///home'}] an answer"


def test_a_question_inside_a_task_group_ends_the_call_too(connect: Start) -> None:
    server = connect(revision=STATELESS, capabilities=ALL)
    first = server.call("ask_in_group")
    assert list(first["inputRequests"]) == ["one"]
    assert retry(server, "ask_in_group", first, {"one": {"action": "decline"}})["content"][0]["text"] == "decline"


@pytest.mark.parametrize(
    "responses",
    [
        {},
        {"wrong": accepted("x")},
        {"question-1": 12345},
        {"question-1": {"action": "shrug"}},
        {"question-1": None},
    ],
)
def test_an_answer_that_is_none_is_asked_for_again(connect: Start, responses: dict[str, Any]) -> None:
    server = connect(revision=STATELESS, capabilities=ALL)
    again = retry(server, "ask", server.call("ask"), responses)
    assert list(again["inputRequests"]) == ["question-1"]


def test_input_responses_that_are_no_object_are_invalid_params(connect: Start) -> None:
    server = connect(revision=STATELESS, capabilities=ALL)
    with pytest.raises(Refusal) as caught:
        retry(server, "ask", server.call("ask"), None)
    assert caught.value.code == -32602


def test_a_state_that_is_not_ours_or_not_for_this_is_refused(connect: Start) -> None:
    server = connect(revision=STATELESS, capabilities=ALL)
    first = server.call("ask")
    state = first["requestState"]
    middle = len(state) // 2
    flipped = state[:middle] + ("A" if state[middle] != "A" else "B") + state[middle + 1 :]
    for forged in (state + "-TAMPERED", flipped, state[:-4], "", "x", 5, None, "é", "A" * 300_000, state[1:]):
        with pytest.raises(Refusal) as caught:
            retry(server, "ask", first, {}, requestState=forged)
        assert caught.value.code == -32602, forged
    with pytest.raises(Refusal):  # another tool
        retry(server, "ask_in_group", first, {})
    with pytest.raises(Refusal):  # other arguments
        retry(server, "ask", first, {}, arguments={"x": 1})


def test_the_state_is_opaque_and_survives_a_restart(probe: Start) -> None:
    import base64

    one = probe(revision=STATELESS, capabilities=ALL)
    before = retry(one, "ask", one.call("ask"), {"question-1": accepted("Secret-Ada")})
    assert b"Secret-Ada" not in base64.urlsafe_b64decode(before["requestState"])
    one.close()
    other = probe(revision=STATELESS, capabilities=ALL)
    assert "Secret-Ada" in retry(other, "ask", before, {"second": accepted("Bob")})["content"][0]["text"]
    key = one.state / "keys" / "request-state"
    assert key.stat().st_mode & 0o777 == 0o600


# -- what a form comes back with

ILL = [
    ({"name": 7}, 'field "name" must be a string, not 7'),
    ({}, 'field "name" is missing'),
    ({"name": None}, 'field "name" must be a string, not null'),
]


@pytest.mark.parametrize(("content", "told"), ILL)
def test_a_form_that_comes_back_with_what_it_has_no_place_for_is_unanswered(
    connect: Start, content: dict[str, Any], told: str
) -> None:
    server = connect(capabilities=ALL, answer=lambda *_: {"action": "accept", "content": content})
    assert f"the answer does not fit the form that was sent: {told}" in server.error("ask_in_group")


@pytest.mark.parametrize(("content", "told"), ILL)
def test_a_retry_with_what_the_form_has_no_place_for_ends_the_call(
    connect: Start, content: dict[str, Any], told: str
) -> None:
    server = connect(revision=STATELESS, capabilities=ALL)
    before = server.call("ask_in_group")
    result = retry(server, "ask_in_group", before, {"one": {"action": "accept", "content": content}})
    assert result["isError"] is True
    assert told in result["content"][0]["text"]


def test_several_questions_are_each_held_against_their_own_form(connect: Start) -> None:
    answers = {**ANSWERS, "elicitation/create": {"action": "accept", "content": {"name": ["Ada"]}}}
    server = connect(capabilities=ALL, answer=lambda method, _: answers[method])
    assert 'field "name" must be a string, not ["Ada"]' in server.error("ask_together")


MOST_TRIES = 3  # a machine that is busy may take a quarter of a second over what takes a hundredth
QUESTIONS = {"questions_json": '[{"question": "Which?", "options": ["this", "that"]}]'}


@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize(("seconds", "is_hasty"), [(0.0, True), (0.3, False)])
def test_a_no_is_the_persons_only_if_there_was_time_to_read(
    connect: Start, action: str, seconds: float, is_hasty: bool
) -> None:
    def refuse(*_: Any) -> Any:
        threading.Event().wait(seconds)
        return {"action": action}

    server = connect(capabilities=ALL, answer=refuse)
    told = (server.text("AskUserQuestion", QUESTIONS) for _ in range(MOST_TRIES))
    assert any("at once: likely no person is there" in text and "1. Which?" in text for text in told) is is_hasty


@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize(("seconds", "is_hasty"), [(0.0, True), (0.3, False)])
def test_a_no_of_a_retry_is_the_persons_only_if_there_was_time_to_read(
    connect: Start, action: str, seconds: float, is_hasty: bool
) -> None:
    server = connect(revision=STATELESS, capabilities=ALL)
    outcome = {"decline": "declined", "cancel": "cancelled"}[action]

    def note() -> str:
        before = server.call("AskUserQuestion", QUESTIONS)
        threading.Event().wait(seconds)
        answers = {"questions": {"action": action}}
        result = retry(server, "AskUserQuestion", before, answers, arguments=QUESTIONS)
        text: str = result["content"][0]["text"]
        assert result["structuredContent"] == {"answers": [], "outcome": outcome, "note": text}
        return text

    assert any("at once: likely no person is there" in note() for _ in range(MOST_TRIES)) is is_hasty
