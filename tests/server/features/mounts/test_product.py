"""Every revision of a client meets every revision of a mounted server: what passes, and what a client is told that
can't answer or never does."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.clients import raw_task_client
from tests.clients.raw_client import REVISIONS, STATELESS, Refusal, Server, eventually, served
from tests.server.features.mounts.mounted import ANSWERS, CAPABILITIES, answer, command_mount, wait_listed, write_config

pytestmark = pytest.mark.soak  # test_mounts.py has pairs
TASKS = {"extensions": {raw_task_client.TASKS: {}}}
NOBODY = "no answer within"


class Pair(NamedTuple):
    """Revisions of the client and of the mounted server, and whether the client answers."""

    client: str
    mount: str
    answers: bool

    @property
    def far_is_modern(self) -> bool:
        return self.mount == STATELESS


PAIRS = [Pair(client, mount, answers) for client in REVISIONS for mount in REVISIONS for answers in (True, False)]


class Conversation(NamedTuple):
    pair: Pair
    server: Server


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: f"{pair.client}-{pair.mount}-{pair.answers}")
def talk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversation]:
    pair: Pair = request.param
    folder = tmp_path_factory.mktemp("product")
    era = "modern" if pair.far_is_modern else pair.mount
    lines = ('env = { FAR_TASKS = "1" }',) if pair.mount == "2025-11-25" else ()
    options = (*write_config(folder, command_mount(era, "far", *lines)), "--hold", "2", "--task-after", "0.5")
    capabilities = {**CAPABILITIES, **(TASKS if pair.client == STATELESS else {})}
    said = answer if pair.answers else _never_answer
    with served(folder, *options, revision=pair.client, capabilities=capabilities, answer=said) as server:
        wait_listed(server)
        yield Conversation(pair, server)


def _never_answer(_method: str, _params: dict[str, Any]) -> None:
    """Stand in for a client that declares what it does not do."""


def call(talk: Conversation) -> None:
    arguments = {"n": "7", "new": 1.0}
    assert json.loads(talk.server.text("far__echo", arguments))["arguments"] == arguments


def error(talk: Conversation) -> None:
    with pytest.raises(Refusal) as caught:
        talk.server.call("far__error")
    assert (caught.value.code, caught.value.message, caught.value.data) == (
        -31999,
        "as the mount says it",
        {"why": "data"},
    )


def progress(talk: Conversation) -> None:
    assert talk.server.text("far__progress", progressToken="mine") == "done"
    steps = [note for note in talk.server.notes("notifications/progress") if note["progressToken"] == "mine"]
    assert [note["progress"] for note in steps] == [1, 2]


def cancel(talk: Conversation) -> None:
    server = talk.server
    before = int(server.text("far__count"))
    id = server.begin("tools/call", {"name": "far__slow", "arguments": {}})
    server.notify("notifications/cancelled", {"requestId": id})
    assert eventually(lambda: int(server.text("far__count")) > before + 1)
    assert not [message for message in server.messages if message.get("id") == id and "method" not in message]


def elicitation(talk: Conversation) -> None:
    _ask(talk, "far__ask", "elicitation/create")


def sampling(talk: Conversation) -> None:
    _ask(talk, "far__sample", "sampling/createMessage")


def roots(talk: Conversation) -> None:
    _ask(talk, "far__roots", "roots/list")


def _ask(talk: Conversation, tool: str, method: str) -> None:
    pair, server = talk
    params: dict[str, Any] = {"name": tool, "arguments": {}}
    result = server.request("tools/call", params)
    if pair.client == STATELESS:
        (key,) = result["inputRequests"]
        assert result["inputRequests"][key]["method"] == method
        if not pair.answers:  # it does not come back: what waits holds up nothing
            assert server.text("far__count")
            return
        retried = {"inputResponses": {key: ANSWERS[method]}, "requestState": result["requestState"]}
        result = server.request("tools/call", {**params, **retried})
    text = result["content"][0]["text"]
    if method == "elicitation/create" and pair.client < "2025-06-18":  # that revision has none
        assert "can't" in text or "cannot" in text, text
    elif pair.answers:
        assert json.loads(text) == ANSWERS[method]
    else:
        assert NOBODY in text
    assert result.get("isError", False) == (pair.far_is_modern and "content" in result and text[0] != "{")
    assert server.text("far__count")


def subscription(talk: Conversation) -> None:
    server, uri = talk.server, "far://item/7"
    if talk.pair.client == STATELESS:
        server.begin("subscriptions/listen", {"notifications": {"resourceSubscriptions": [uri]}})
    else:
        server.request("resources/subscribe", {"uri": uri})

    def hears() -> bool:
        server.text("far__touch")
        return any(note["uri"] == uri for note in server.notes("notifications/resources/updated"))

    assert eventually(hears)


def list_change(talk: Conversation) -> None:
    server = talk.server
    if talk.pair.client == STATELESS:
        server.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    assert server.text("far__grow") == "grown"
    server.wait(lambda said: said.get("method") == "notifications/tools/list_changed")
    assert eventually(lambda: "far__grown_0" in {tool["name"] for tool in server.request("tools/list")["tools"]})


def task(talk: Conversation) -> None:
    """A long call is a task of ours where the client has them; a tool of 2025-11-25 may run as a task only."""
    pair, server = talk
    if pair.client == STATELESS:
        ended = raw_task_client.ended(server, raw_task_client.created(server, "far__later"))
        assert raw_task_client.text(ended) == "it took a while"
    else:
        assert server.text("far__later") == "it took a while"
    if pair.mount == "2025-11-25":
        assert server.text("far__long") == "done"


WHAT: list[Callable[[Conversation], None]] = [
    call,
    error,
    progress,
    cancel,
    elicitation,
    sampling,
    roots,
    subscription,
    list_change,
    task,
]


@pytest.mark.parametrize("what", WHAT, ids=lambda what: what.__name__)
def test_what_a_client_of_one_revision_does_with_a_server_of_another(
    talk: Conversation, what: Callable[[Conversation], None]
) -> None:
    what(talk)
