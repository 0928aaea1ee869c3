"""A call whose head repeats the last one is answered by its own body: what is kept of the last one decides nothing."""

import contextlib
import http.client
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.clients.raw_client import STATELESS, eventually
from tests.clients.raw_http_client import POSTED, Site
from tests.transports.test_streamable_http import PREFIX, modern
from toolgate.server.protocol import request_meta
from toolgate.server.protocol.dispatcher import Dispatcher
from toolgate.server.protocol.errors import RpcError
from toolgate.server.protocol.messages import Request, decode, decode_repeated
from toolgate.server.protocol.session import Channel, Session
from toolgate.transports.http.post import Post
from toolgate.transports.http.stateless import StatelessPosts

VERSION, CAPABILITIES = PREFIX + "protocolVersion", PREFIX + "clientCapabilities"
CLIENT, LEVEL = PREFIX + "clientInfo", PREFIX + "logLevel"
GOOD = {VERSION: STATELESS, CAPABILITIES: {"roots": {}, "sampling": {}}, CLIENT: {"name": "tests", "version": "1"}}

OTHERS: dict[str, Any] = {
    "other capabilities": {**GOOD, CAPABILITIES: {"roots": {}, "samplinG": {}}},
    "no capabilities": {**GOOD, CAPABILITIES: {}},
    "capabilities of the wrong type": {**GOOD, CAPABILITIES: 1},
    "capabilities missing": {VERSION: STATELESS},
    "another version": {**GOOD, VERSION: "2026-07-29"},
    "a version of the other era": {**GOOD, VERSION: "2025-11-25"},
    "no version": {CAPABILITIES: {}},
    "a client of the wrong type": {**GOOD, CLIENT: "tests"},
    "an unknown log level": {**GOOD, LEVEL: "loud"},
    "a level of the wrong type": {**GOOD, LEVEL: 1},
    "nothing": {},
    "no object": 5,
    "null": None,
}


def ask_all(site: Site, headers: dict[str, str], bodies: list[Any]) -> list[tuple[int, Any]]:
    """Return statuses and answers of requests on one connection, each sent in one piece."""
    head = "".join(f"{name}: {value}\r\n" for name, value in {**POSTED, **headers}.items())
    answers: list[tuple[int, Any]] = []
    with contextlib.closing(site.socket()) as connection:
        for body in bodies:
            data = body if isinstance(body, str) else json.dumps(body)
            lines = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}Content-Length: {len(data)}\r\n\r\n"
            connection.sendall((lines + data).encode())
            response = http.client.HTTPResponse(connection, method="POST")
            response.begin()
            answers.append((response.status, json.loads(response.read())))
            response.close()
    return answers


def without_state(answer: Any) -> Any:
    """Return an answer without what is sealed anew each time."""
    return {**answer, "result": {**answer["result"], "requestState": ""}} if "result" in answer else answer


@pytest.mark.parametrize("other", OTHERS)
def test_another_meta_is_read_although_the_head_repeats(shared: Site, other: str) -> None:
    good, headers = modern("tools/call", {"name": "ask_together", "arguments": {}}, **GOOD)
    bad = {**good, "params": {**good["params"], "_meta": OTHERS[other]}}
    alone = [ask_all(shared, headers, [body])[0] for body in (good, bad)]
    order = [0, 0, 0, 1, 0, 1, 1, 1, 0, 0]
    together = ask_all(shared, headers, [(good, bad)[number] for number in order])
    expected = [alone[number] for number in order]
    assert [(status, without_state(answer)) for status, answer in together] == [
        (status, without_state(answer)) for status, answer in expected
    ]
    assert alone[0][1]["result"]["resultType"] == "input_required"
    assert "error" in alone[1][1]


def test_a_meta_nested_as_deeply_as_can_be_read_is_read_each_time(shared: Site) -> None:
    answered: list[set[int]] = []
    for depth in range(880, 1000):
        about = {CLIENT: {"name": "tests", "version": "deep"}}
        body, headers = modern("tools/call", {"name": "echo", "arguments": {"text": "hi"}}, **about)
        deep = json.dumps(body).replace('"deep"', "[" * depth + "]" * depth)
        answered.append({status for status, _ in ask_all(shared, headers, [deep] * 4)})
    assert set.union(*answered) <= {200, 400}  # refused where the interpreter's recursion ends
    assert sum(len(statuses) > 1 for statuses in answered) <= 20  # a first request is nearer to that end


def test_a_repeated_meta_is_checked_once_for_each_principal(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Any] = []
    request_session = request_meta.request_session

    def check(meta: dict[str, Any], session: Session) -> Session:
        checked.append(session)
        return request_session(meta, session)

    monkeypatch.setattr(request_meta, "request_session", check)
    posts, dispatcher = StatelessPosts.__new__(StatelessPosts), Dispatcher({}, {}, lambda answer, _: answer)
    data = json.dumps(modern("tools/call", {"name": "echo", "arguments": {}}, **GOOD)[0]).encode()
    head: Any = SimpleNamespace(session=None, meta=None)
    old, new = SimpleNamespace(name="ada"), SimpleNamespace(name="ada")  # of a token before and after it is refreshed
    for principal in (*[old] * 4, *[new] * 4):
        request = (decode_repeated(data, head.meta) if head.meta is not None else None) or decode(data)
        assert isinstance(request, Request)
        known = posts._find_session(cast(Post, SimpleNamespace(head=head, principal=principal)), request)
        session = known or Session("ada", stateless=True)
        with contextlib.suppress(RpcError):  # there are no methods
            dispatcher._prepare_call(request, session, cast(Channel, None))
        if known is None:
            head.session = principal, request.params["_meta"], session
    assert len(checked) == 2


def test_another_method_or_tool_is_refused_although_the_head_repeats(shared: Site) -> None:
    good, headers = modern("tools/call", {"name": "echo", "arguments": {"text": "hi"}}, **GOOD)
    bad = [
        {**good, "method": "tools/list"},
        {**good, "params": {**good["params"], "name": "plain"}},
        {**good, "params": {**good["params"], "name": ["echo"]}},
    ]
    answers = ask_all(shared, headers, [good, good, good, *bad, good, *bad])
    codes = [answer.get("error", {}).get("code") for _, answer in answers]
    assert codes == [None] * 3 + [-32020] * 3 + [None] + [-32020] * 3


def test_each_repeated_call_is_recorded_under_the_name_in_its_own_meta(shared: Site) -> None:
    names = ["one", "one", "one", "two", "one", "two", "two", ""]
    bodies: list[Any] = []
    headers: dict[str, str] = {}
    for number, name in enumerate(names):
        about = {CLIENT: {"name": f"repeated {name}", "version": "1"}} if name else {}
        body, headers = modern("tools/call", {"name": "echo", "arguments": {"text": "hi"}}, id=number, **about)
        bodies.append(body)
    assert {status for status, _ in ask_all(shared, headers, bodies)} == {200}

    def recorded() -> list[str]:
        lines = (shared.state / "audit" / "audit.jsonl").read_text().splitlines()
        return [json.loads(line).get("client", "") for line in lines][-len(names) :]

    assert eventually(lambda: recorded() == [f"repeated {name}" if name else "" for name in names]), recorded()
