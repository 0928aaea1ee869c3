"""prompts/list, prompts/get and completion/complete, on every transport."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import REVISIONS, STATELESS, Refusal, Server
from toolgate.tools import Message, prompt

pytestmark = pytest.mark.pairs

Start = Callable[..., Server]
PNG = base64.b64encode(b"\x89PNG").decode()


def refused(server: Server, method: str, params: dict[str, Any]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        server.request(method, params)
    return caught.value


def listed(server: Server, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in server.request("prompts/list")["prompts"] if each["name"] == name)
    return found


def suggested(server: Server, argument: str, value: str, **context: str) -> dict[str, Any]:
    params = {
        "ref": {"type": "ref/prompt", "name": "greeting"},
        "argument": {"name": argument, "value": value},
        "context": {"arguments": context},
    }
    found: dict[str, Any] = server.request("completion/complete", params)["completion"]
    return found


# -- listing


def test_a_prompt_is_listed_with_its_arguments_and_what_the_revision_knows(connect: Start) -> None:
    plain = {
        "name": "greeting",
        "description": "Greet somebody.",
        "arguments": [
            {"name": "name", "description": "who is greeted", "required": True},
            {"name": "tone"},
            {"name": "times"},
        ],
    }
    icons = [{"src": "https://example.com/icon.png", "mimeType": "image/png", "sizes": ["48x48"]}]
    titled = {**plain, "title": "A greeting", "_meta": {"example.com/kept": 1}}
    told = {"2024-11-05": plain, "2025-03-26": plain, "2025-06-18": titled}
    for revision in REVISIONS:
        assert listed(connect(revision=revision), "greeting") == told.get(revision, {**titled, "icons": icons})


# -- getting


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_plain_string_is_a_message_of_the_user(connect: Start, revision: str) -> None:
    answer = connect(revision=revision).request(
        "prompts/get", {"name": "greeting", "arguments": {"name": "Ada", "times": "2"}}
    )
    assert answer["description"] == "Greet somebody."
    text = {"type": "text", "text": "warm: hello Adawarm: hello Ada"}
    assert answer["messages"] == [{"role": "user", "content": text}]


@pytest.mark.parametrize("revision", REVISIONS)
def test_every_kind_of_message_is_spelled_as_the_revision_knows_it(connect: Start, revision: str) -> None:
    messages = connect(revision=revision).request("prompts/get", {"name": "conversation"})["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "user", "user", "user"]
    words, answer, image, audio, inside, link = (message["content"] for message in messages)
    assert (words["text"], answer["text"], image["data"]) == ("words", "an answer", PNG)
    assert audio["type"] == ("text" if revision == "2024-11-05" else "audio")
    resource = {"uri": "test://inside", "mimeType": "text/plain", "text": "text"}
    has_meta, has_links, has_icons = (revision >= since for since in ("2025-06-18", "2025-06-18", "2025-11-25"))
    assert inside["resource"] == {**resource, **({"_meta": {"example.com/a": 1}} if has_meta else {})}
    assert link["type"] == ("resource_link" if has_links else "text")
    assert ("icons" in link) == has_icons


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"name": "no such"}, "unknown prompt: 'no such'"),
        ({"name": 5}, "unknown prompt: 5"),
        ({}, "unknown prompt: none is named"),
        ({"name": "greeting"}, "missing argument 'name'"),
        ({"name": "greeting", "arguments": []}, "'arguments' must be an object"),
        ({"name": "greeting", "arguments": {"name": 5}}, "argument 'name' must be a string"),
        ({"name": "greeting", "arguments": {"name": "a", "x": "y"}}, "prompt 'greeting' has no argument 'x'"),
        ({"name": "greeting", "arguments": {"name": "a", "times": "often"}}, "argument 'times': Expected `int`"),
        (
            {"name": "greeting", "arguments": {"name": "a", "tone": "loud"}},
            "argument 'tone': Invalid enum value 'loud'",
        ),
    ],
)
def test_what_a_prompt_can_not_take_is_invalid_params(connect: Start, params: dict[str, Any], said: str) -> None:
    refusal = refused(connect(), "prompts/get", params)
    assert refusal.code == -32602
    assert refusal.message.startswith(said)


def test_a_prompt_that_says_no_is_an_error_with_its_words(connect: Start) -> None:
    refusal = refused(connect(), "prompts/get", {"name": "reluctant"})
    assert (refusal.code, refusal.message) == (-32603, "not today")


def test_a_bug_in_a_prompt_is_told_by_a_reference_only(connect: Start) -> None:
    refusal = refused(connect(), "prompts/get", {"name": "broken_prompt"})
    assert refusal.code == -32603
    assert refusal.message.startswith("internal error, reference ")


def test_a_prompt_may_ask_the_person_in_both_eras(connect: Start) -> None:
    accepted = {"action": "accept", "content": {"name": "Ada"}}
    old = connect(fresh=True, capabilities={"elicitation": {}}, answer=lambda method, params: accepted)
    assert old.request("prompts/get", {"name": "personal"})["messages"][0]["content"]["text"] == "hello Ada"
    new = connect(revision=STATELESS, capabilities={"elicitation": {}})
    first = new.request("prompts/get", {"name": "personal"})
    assert list(first["inputRequests"]) == ["who"]
    again = {"name": "personal", "inputResponses": {"who": accepted}, "requestState": first["requestState"]}
    assert new.request("prompts/get", again)["messages"][0]["content"]["text"] == "hello Ada"


def test_a_client_that_can_not_be_asked_is_told_which_capability_is_missing(probe: Start) -> None:
    assert refused(probe(), "prompts/get", {"name": "personal"}).code == -32603
    refusal = refused(probe(revision=STATELESS), "prompts/get", {"name": "personal"})
    assert (refusal.code, refusal.data) == (-32021, {"requiredCapabilities": {"elicitation": {}}})


@pytest.mark.parametrize("role", ["system", "tool", "", None])
def test_a_role_other_than_user_or_assistant_is_refused(role: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="'user' or 'assistant'"):
        Message(role, "words")

    @prompt(role=role)
    def wrong() -> str:
        """Wrong."""
        return ""

    with pytest.raises(TypeError, match="'user' or 'assistant'"):
        wrong.verify()


def test_a_plugin_whose_prompt_has_the_role_system_is_left_out_and_the_log_says_why(
    start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "orders.py").write_text(
        'from toolgate.tools import prompt\n@prompt(role="system")\ndef orders() -> str:\n    """Orders."""\n'
    )
    server = start("-p", str(folder))
    assert "orders" not in [each["name"] for each in server.request("prompts/list")["prompts"]]
    assert "'user' or 'assistant', not 'system'" in server.log()


# -- completion


def test_an_argument_with_choices_completes_by_itself_best_first(connect: Start) -> None:
    server = connect()
    assert suggested(server, "tone", "w") == {"values": ["warm", "wry"], "total": 2, "hasMore": False}
    assert suggested(server, "tone", "R")["values"] == ["warm", "wry"]
    assert suggested(server, "tone", "LD")["values"] == ["cold"]
    assert suggested(server, "times", "x")["values"] == []


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_completion_gets_what_was_typed_and_filled_in_and_gives_a_hundred_at_most(
    connect: Start, revision: str
) -> None:
    found = suggested(connect(revision=revision), "name", "a", tone="wry")
    assert found["values"] == [f"a-wry-{number}" for number in range(100)]
    assert (found["total"], found["hasMore"]) == (150, True)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"ref": {"type": "ref/prompt", "name": "no such"}, "argument": {"name": "name", "value": ""}},
        {"ref": {"type": "ref/tool", "name": "echo"}, "argument": {"name": "text", "value": ""}},
        {"ref": {"type": "ref/resource", "uri": "no://such"}, "argument": {"name": "name", "value": ""}},
        {"ref": {"type": "ref/prompt", "name": "greeting"}, "argument": {"name": "no such", "value": ""}},
        {"ref": {"type": "ref/prompt", "name": "greeting"}, "argument": {"name": "name", "value": 5}},
        {"ref": {"type": "ref/prompt", "name": "greeting"}, "argument": {"name": "name", "value": "x" * 8_193}},
        {
            "ref": {"type": "ref/prompt", "name": "greeting"},
            "argument": {"name": "name", "value": ""},
            "context": {"arguments": {"tone": 5}},
        },
    ],
)
def test_a_completion_of_nothing_known_is_invalid_params(connect: Start, params: dict[str, Any]) -> None:
    assert refused(connect(), "completion/complete", params).code == -32602


def test_a_template_variable_completes_by_its_template_and_by_any_uri_of_it(connect: Start) -> None:
    server = connect()
    for uri in ("note://{name}", "note://one"):
        ref = {"type": "ref/resource", "uri": uri}
        found = server.request("completion/complete", {"ref": ref, "argument": {"name": "name", "value": "o"}})
        assert found["completion"] == {"values": ["one"], "total": 7, "hasMore": True}


@pytest.mark.parametrize("revision", ["2025-11-25", STATELESS])
def test_a_completion_never_asks_the_person(connect: Start, revision: str) -> None:
    accepted = {"action": "accept", "content": {"name": "Ada"}}
    server = connect(
        fresh=True, revision=revision, capabilities={"elicitation": {}}, answer=lambda method, params: accepted
    )
    ref = {"type": "ref/prompt", "name": "asking"}
    refusal = refused(server, "completion/complete", {"ref": ref, "argument": {"name": "topic", "value": ""}})
    assert (refusal.code, refusal.message) == (-32603, "a completion can't ask the person")
