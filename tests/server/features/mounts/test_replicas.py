"""Two servers on one state with the same mount: a client comes back with its answer to whichever it likes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.raw_client import STATELESS, eventually
from tests.clients.raw_http_client import read_messages
from tests.server.auth.minted_tokens import ENVELOPE, request
from tests.server.features.mounts.mounted import ANSWERS, CAPABILITIES, command_mount, write_config
from tests.servers.postgres import Postgres
from tests.servers.replicas import Replicas, running_replicas

ASKED = {"io.modelcontextprotocol/clientCapabilities": CAPABILITIES}


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[Replicas]:
    folder = tmp_path_factory.mktemp("mounts")
    with running_replicas(folder, postgres, *write_config(folder, command_mount("legacy"))) as servers:
        for place in (0, 1):
            assert eventually(lambda place=place: "far__ask" in names(servers, place)), servers.log()
        yield servers


def ask_for_all(replicas: Replicas, place: int, method: str, meta: dict[str, Any], **params: Any) -> list[Any]:
    """Return what comes of one request at one of the servers; the answer is the last."""
    headers = {"mcp_protocol_version": STATELESS, "mcp_method": method}
    if "name" in params:
        headers["mcp_name"] = params["name"]
    sent = request(method, {**params, "_meta": {**ENVELOPE, **ASKED, **meta}})
    response, raw, _ = replicas.sites[place].ask("POST", "/mcp", sent, **headers)
    assert response.status == 200, (raw, replicas.log())
    return read_messages(response, raw)


def ask(replicas: Replicas, place: int, method: str, **params: Any) -> Any:
    """Return the result of one request at one of the servers."""
    return ask_for_all(replicas, place, method, {}, **params)[-1]["result"]


def names(replicas: Replicas, place: int) -> set[str]:
    return {tool["name"] for tool in ask(replicas, place, "tools/list")["tools"]}


def text(result: Any) -> str:
    return "".join(part["text"] for part in result["content"])


def call(replicas: Replicas, place: int, tool: str = "far__ask", **params: Any) -> Any:
    return ask(replicas, place, "tools/call", name=tool, arguments={}, **params)


def respond(asked: Any) -> dict[str, Any]:
    """Return the members of a call that answers."""
    answers = {key: ANSWERS[each["method"]] for key, each in asked["inputRequests"].items()}
    return {"inputResponses": answers, "requestState": asked["requestState"]}


def test_the_answer_to_a_parked_call_may_come_to_another_server(replicas: Replicas) -> None:
    asked = call(replicas, 0)
    assert asked["resultType"] == "input_required"
    count = text(call(replicas, 0, "far__count"))
    result = call(replicas, 1, **respond(asked))
    assert json.loads(text(result)) == ANSWERS["elicitation/create"], replicas.log()
    assert int(text(call(replicas, 0, "far__count"))) == int(count) + 1  # the call was made once
    again = call(replicas, 1, **respond(asked))
    assert again["isError"], "it is used up"


def test_progress_of_a_parked_call_comes_by_way_of_the_other_server(replicas: Replicas) -> None:
    wanted, again = {"progressToken": "first"}, {"progressToken": "second"}
    params = {"name": "far__ask", "arguments": {"steps": 1}}
    asked = ask_for_all(replicas, 0, "tools/call", wanted, **params)[-1]["result"]
    *told, answer = ask_for_all(replicas, 1, "tools/call", again, **params, **respond(asked))
    assert json.loads(text(answer["result"])) == ANSWERS["elicitation/create"], replicas.log()
    notices = [notice["params"] for notice in told if "message" not in notice["params"]]  # those have signs of life
    assert notices == [{**again, "progress": step} for step in (1, 2)]


def test_a_parked_call_of_a_server_that_ended_is_an_error_and_never_a_new_call(replicas: Replicas) -> None:
    asked = call(replicas, 0)
    replicas.sites[0].kill()
    try:
        before = text(call(replicas, 1, "far__count"))
        result = call(replicas, 1, **respond(asked))
        assert result["isError"] and "QUESTION_EXPIRED" in text(result)
        assert int(text(call(replicas, 1, "far__count"))) == int(before) + 1
    finally:
        replicas.restart(0)
