"""The protocol core through the real process: lifecycle, errors, revisions, concurrency, cancellation, logs."""

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.raw_client import REVISIONS, STATELESS, WITH_SESSION, Refusal, Server, eventually
from tests.needed_features import list_deleted

pytestmark = pytest.mark.pairs

Start = Callable[..., Server]


def refused(server: Server, method: str, params: dict[str, Any] | None = None, **meta: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        server.request(method, params, **meta)
    return caught.value


# -- lifecycle


@pytest.mark.parametrize("revision", WITH_SESSION)
def test_initialize_answers_the_revision_it_was_asked_for(connect: Start, revision: str) -> None:
    assert connect(revision=revision).hello["protocolVersion"] == revision


@pytest.mark.parametrize("asked", ["1999-01-01", "2026-07-28", "zzz", ""])
def test_an_unknown_revision_gets_the_newest_of_the_handshake_era(connect: Start, asked: str) -> None:
    server = connect(handshake=False)
    hello = {"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    assert server.request("initialize", hello)["protocolVersion"] == "2025-11-25"


def test_nothing_but_ping_is_served_before_initialize(start: Start) -> None:
    server = start(handshake=False)
    assert server.request("ping") == {}
    for method in ("tools/list", "tools/call", "logging/setLevel", "no/such", "server/discover"):
        assert refused(server, method).code == -32600


def test_a_second_initialize_is_refused(connect: Start) -> None:
    server = connect()
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    assert refused(server, "initialize", hello).code == -32600


@pytest.mark.parametrize("params", [{}, {"protocolVersion": 5}, {"protocolVersion": "2025-11-25", "capabilities": 3}])
def test_initialize_with_bad_params_is_invalid_params_and_can_be_tried_again(
    start: Start, params: dict[str, Any]
) -> None:
    server = start(handshake=False)
    assert refused(server, "initialize", params).code == -32602
    assert server.request("initialize", {"protocolVersion": "2025-11-25"})["protocolVersion"] == "2025-11-25"


def test_ping_answers_an_empty_object(connect: Start) -> None:
    assert connect().request("ping") == {}


def test_capabilities_declare_what_is_served(connect: Start) -> None:
    served = {
        "tools": {"listChanged": True},
        "prompts": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "logging": {},
        **({} if "events" in list_deleted() else {"events": {}}),
    }
    assert connect().hello["capabilities"] == {**served, "completions": {}}
    assert connect(revision="2024-11-05").hello["capabilities"] == served


def test_the_name_told_to_clients_is_an_option(start: Start) -> None:
    assert start("-n", "workbench").hello["serverInfo"]["name"] == "workbench"


def test_an_unknown_method_is_method_not_found(connect: Start) -> None:
    server = connect()
    for method in ("no/such", "server/discover", "subscriptions/listen", "tasks/list", "tasks/get"):
        assert refused(server, method).code == -32601


# -- the stateless era


def test_discover_tells_revisions_capabilities_and_identity(connect: Start) -> None:
    answer = connect(revision=STATELESS).request("server/discover")
    assert answer["supportedVersions"] == list(reversed(REVISIONS))
    assert answer["resultType"] == "complete"
    assert answer["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "toolgate"


@pytest.mark.parametrize("lost", ["protocolVersion", "clientCapabilities"])
def test_an_envelope_that_lacks_a_field_is_invalid_params(connect: Start, lost: str) -> None:
    server = connect(handshake=False)
    server.revision = STATELESS
    meta = server.envelope()
    del meta["io.modelcontextprotocol/" + lost]
    server.send({"id": 1, "method": "tools/list", "params": {"_meta": meta}})
    with pytest.raises(Refusal) as caught:
        server.result(1)
    assert caught.value.code == -32602
    assert lost in caught.value.message


def test_a_revision_that_is_not_served_is_told_which_are(connect: Start) -> None:
    server = connect(revision=STATELESS)
    refusal = refused(server, "server/discover", **{"io.modelcontextprotocol/protocolVersion": "v999.0.0"})
    assert refusal.code == -32022
    assert refusal.data == {"supported": list(reversed(REVISIONS)), "requested": "v999.0.0"}


def test_client_info_may_be_left_out(connect: Start) -> None:
    server = connect(handshake=False)
    server.revision = STATELESS
    meta = server.envelope()
    del meta["io.modelcontextprotocol/clientInfo"]
    server._methods[1] = "tools/list"
    server.send({"id": 1, "method": "tools/list", "params": {"_meta": meta}})
    assert server.result(1)["tools"]


@pytest.mark.parametrize("method", ["initialize", "ping", "logging/setLevel"])
def test_methods_that_the_stateless_era_dropped_are_method_not_found(connect: Start, method: str) -> None:
    assert refused(connect(revision=STATELESS), method).code == -32601


def test_both_eras_are_served_at_once_in_one_process(connect: Start) -> None:
    server = connect()
    assert server.text("echo", {"text": "session"}) == "session"
    stateless = {**server.envelope()}
    server._methods["s"] = "tools/call"
    params = {"name": "echo", "arguments": {"text": "stateless"}, "_meta": stateless}
    server.send({"id": "s", "method": "tools/call", "params": params})
    answer = server.result("s")
    assert answer["resultType"] == "complete"
    assert "resultType" not in server.call("echo", {"text": "session"})


def test_lists_of_the_stateless_era_carry_caching_hints(connect: Start) -> None:
    answer = connect(revision=STATELESS).request("tools/list")
    assert answer["ttlMs"] > 0
    assert answer["cacheScope"] == "private"


# -- messages


@pytest.mark.parametrize(
    ("line", "id", "code"),
    [
        (b"{", None, -32700),
        (b"nonsense", None, -32700),
        (b"\xff\xfe\x00", None, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":"\xff"}', 1, -32700),
        (b"[" * 100_000, None, -32700),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, None, -32700),
        (b"[]", None, -32600),
        (b"3", None, -32600),
        (b'"x"', None, -32600),
        (b"null", None, -32600),
        (b"{}", None, -32600),
        (b'{"id":7}', 7, -32600),
        (b'{"jsonrpc":"2.0","id":"seven"}', "seven", -32600),
        (b'{"jsonrpc":"1.0","id":7,"method":"ping"}', 7, -32600),
        (b'{"id":7,"method":"ping"}', 7, -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', None, -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', None, -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', None, -32600),
        (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', None, -32600),
        (b'{"jsonrpc":"2.0","id":7,"method":5}', 7, -32600),
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":[1]}', 7, -32600),
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":"x"}', 7, -32600),
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"_meta":3}}', 7, -32602),
        (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{}}', 7, -32602),
        (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":5}}', 7, -32602),
        (
            b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":[]}}',
            7,
            -32602,
        ),
        (b'{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"cursor":"x"}}', 7, -32602),
        (b'{"jsonrpc":"2.0","id":7,"method":"logging/setLevel","params":{"level":"loud"}}', 7, -32602),
    ],
)
def test_a_bad_message_is_answered_with_its_code_and_id(connect: Start, line: bytes, id: Any, code: int) -> None:
    server = connect()
    server.write(line + b"\n")
    answer = server.wait(lambda message: "error" in message)
    assert (answer["id"], answer["error"]["code"]) == (id, code)
    assert server.text("echo", {"text": "alive"}) == "alive"


def test_four_hundred_malformed_lines_are_survived(probe: Start) -> None:
    server = probe()
    good = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x"}}}'
    bad = [good[:cut] for cut in range(1, len(good) - 1)]
    bad += [bytes([byte]) * 3 for byte in range(128, 256)] + [b"\0" * n for n in range(1, 60)]
    bad += [good.replace(b":", sign, 3) for sign in (b";", b"=", b"::", b"", b"\x07", b"\xc3")]
    bad += [b"{" * n for n in range(1, 120)]
    assert len(bad) >= 400
    server.write(b"\n".join(bad) + b"\n")
    server.wait(lambda _: sum("error" in message for message in server.messages) == len(bad), 30)
    assert {message["error"]["code"] for message in server.messages if "error" in message} <= {-32700, -32600}
    assert server.text("echo", {"text": "alive"}) == "alive"


def test_ids_keep_their_json_type(connect: Start) -> None:
    server = connect()
    for id in (0, -5, 2**53, 10**30, "7", "", "é\n"):
        server.send({"id": id, "method": "ping"})
        assert server.wait(lambda message, id=id: message.get("id") == id and type(message["id"]) is type(id))


def test_unknown_notifications_and_stray_answers_are_ignored(connect: Start) -> None:
    server = connect()
    server.notify("notifications/no_such_thing", {"x": 1})
    server.notify("notifications/cancelled", {"requestId": {"not": "an id"}})
    server.notify("notifications/cancelled", {"requestId": 999})
    server.notify("notifications/cancelled")
    server.send({"id": 12345, "result": {}})
    server.send({"id": None, "error": {"code": 1, "message": "x"}})
    assert server.request("ping") == {}
    assert not [message for message in server.messages if "error" in message]


def test_a_duplicate_id_in_flight_is_refused_and_the_first_goes_on(connect: Start) -> None:
    server = connect()
    id = server.begin("tools/call", {"name": "wait", "arguments": {"seconds": 0.5}})
    server.send({"id": id, "method": "ping"})
    assert server.wait(lambda message: "error" in message)["error"]["code"] == -32600
    assert server.wait(lambda message: message.get("id") == id and "result" in message)


def test_a_line_over_the_limit_is_refused_and_the_next_is_served(start: Start) -> None:
    server = start()
    server.write(b"x" * (33 * 2**20) + b"\n")
    assert server.wait(lambda message: "error" in message)["error"]["code"] == -32600
    assert server.request("ping") == {}


# -- batches


def test_a_batch_is_answered_as_one_array_on_2025_03_26(connect: Start) -> None:
    server = connect(revision="2025-03-26")
    batch = [
        {"jsonrpc": "2.0", "id": "a", "method": "ping"},
        {"jsonrpc": "2.0", "method": "notifications/no_such"},
        {"jsonrpc": "2.0", "id": "b", "method": "no/such"},
        {"jsonrpc": "2.0", "id": "c", "method": "initialize", "params": {}},
        7,
    ]
    server.write(json.dumps(batch).encode() + b"\n")
    server.wait(lambda message: message.get("id") == "a")
    came = {message.get("id"): message for message in server.messages}
    assert came["a"]["result"] == {}
    assert came["b"]["error"]["code"] == -32601
    assert came["c"]["error"]["code"] == -32600
    assert came[None]["error"]["code"] == -32600


def test_a_batch_of_notifications_is_not_answered(connect: Start) -> None:
    server = connect(revision="2025-03-26")
    server.write(b'[{"jsonrpc":"2.0","method":"notifications/x"}]\n')
    before = len(server.messages)
    assert server.request("ping") == {}
    assert len(server.messages) == before + 1


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-06-18", "2025-11-25"])
def test_a_batch_on_any_other_revision_is_refused(connect: Start, revision: str) -> None:
    server = connect(revision=revision)
    server.write(b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]\n')
    answer = server.wait(lambda message: "error" in message)
    assert (answer["id"], answer["error"]["code"]) == (None, -32600)


# -- concurrency, cancellation, progress


@pytest.mark.parametrize("revision", REVISIONS)
def test_requests_run_side_by_side(connect: Start, revision: str) -> None:
    server = connect(revision=revision)
    begun = time.monotonic()
    slow = [server.begin("tools/call", {"name": "wait", "arguments": {"seconds": 1}}) for _ in range(8)]
    assert server.text("echo", {"text": "first"}) == "first"
    for id in slow:
        assert server.result(id)["content"][0]["text"] == "waited"
    assert time.monotonic() - begun < 8


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_cancelled_request_is_never_answered(connect: Start, revision: str) -> None:
    server = connect(revision=revision)
    id = server.begin("tools/call", {"name": "wait", "arguments": {"seconds": 30}}, progressToken="t")
    server.wait(lambda message: message.get("method") == "notifications/progress")
    server.notify("notifications/cancelled", {"requestId": id, "reason": "test"})
    assert server.text("echo", {"text": "on"}) == "on"
    assert not [message for message in server.messages if message.get("id") == id]
    again = server.begin("tools/call", {"name": "echo", "arguments": {"text": "the id is free"}})
    assert server.result(again)


def test_a_tool_that_swallows_its_cancellation_is_not_answered_either(connect: Start) -> None:
    server = connect()
    id = server.begin("tools/call", {"name": "stubborn"})
    server.notify("notifications/cancelled", {"requestId": id})
    assert server.text("echo", {"text": "on"}) == "on"
    assert not [message for message in server.messages if message.get("id") == id]


def test_initialize_cannot_be_outrun_by_what_follows_it(probe: Start) -> None:
    server = probe(handshake=False)
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "ping"},
        {
            "jsonrpc": "2.0",
            "id": 3,
            "method": "tools/call",
            "params": {"name": "echo", "arguments": {"text": "x"}},
        },
    ]
    server.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    assert server.result(3)["content"] == [{"type": "text", "text": "x"}]


@pytest.mark.parametrize("revision", REVISIONS)
def test_progress_goes_to_the_token_and_grows(connect: Start, revision: str) -> None:
    server = connect(revision=revision)
    server.call("climb", progressToken="tok")
    notes = server.notes("notifications/progress")
    assert [note["progressToken"] for note in notes] == ["tok"] * 5
    values = [note["progress"] for note in notes]
    assert values == sorted(set(values)) and values[0] == 0 and values[-1] == 100
    assert ("message" in notes[0]) is (revision != "2024-11-05")


def test_without_a_token_there_is_no_progress(connect: Start) -> None:
    server = connect()
    server.call("climb")
    assert server.notes("notifications/progress") == []


def test_streaming_false_in_the_classic_file_sends_no_progress(probe: Start, tmp_path: Any) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "scorpiox-env.txt").write_text("STREAMING=false\nTOOL_WEBSEARCH=0\nWHAT=ever\n")
    server = probe()
    server.call("climb", progressToken="tok")
    assert server.notes("notifications/progress") == []
    assert "WebSearch" not in {tool["name"] for tool in server.request("tools/list")["tools"]}
    assert "WHAT" in server.log()


def test_tools_false_in_the_classic_file_serves_no_tools(start: Start, tmp_path: Any) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "scorpiox-env.txt").write_text("TOOLS=false\n")
    assert start().request("tools/list")["tools"] == []


@pytest.mark.parametrize(
    ("words", "served"),
    [
        (["--tools", "Read*,!ReadDocs"], ["ReadImage", "ReadBgOutput"]),
        (["--tools", "Bash", "--tools", "PlanMode"], ["Bash", "PlanMode"]),
        (["--tools", "none"], []),
    ],
)
def test_tools_chooses_the_built_in_tools(connect: Start, words: list[str], served: list[str]) -> None:
    server = connect(*words)
    names = [tool["name"] for tool in server.request("tools/list")["tools"]]
    assert names[: len(served)] == served and "climb" in names[len(served) :], "tools of plugins stay"
    assert refused(server, "tools/call", {"name": "WebSearch", "arguments": {"query": "x"}}).code == -32602


# -- logs


def test_the_log_level_of_a_session_holds(connect: Start) -> None:
    server = connect()
    server.call("talk")
    assert [note["level"] for note in server.notes("notifications/message")] == ["notice", "error"]
    assert server.request("logging/setLevel", {"level": "error"}) == {}
    server.call("talk")
    assert [note["level"] for note in server.notes("notifications/message")] == ["notice", "error", "error"]
    server.request("logging/setLevel", {"level": "debug"})
    server.call("talk")
    assert server.notes("notifications/message")[3:] == [
        {"level": "debug", "data": "low", "logger": "probe"},
        {"level": "notice", "data": {"middle": 1}},
        {"level": "error", "data": ["high"]},
    ]


def test_a_stateless_request_is_logged_to_only_as_it_asks(connect: Start) -> None:
    server = connect(revision=STATELESS)
    server.call("talk")
    assert server.notes("notifications/message") == []
    server.call("talk", **{"io.modelcontextprotocol/logLevel": "notice"})
    assert [note["level"] for note in server.notes("notifications/message")] == ["notice", "error"]
    assert refused(server, "tools/list", **{"io.modelcontextprotocol/logLevel": "loud"}).code == -32602


# -- faults


def test_an_unknown_tool_is_invalid_params(connect: Start) -> None:
    server = connect()
    refusal = refused(server, "tools/call", {"name": "NoSuchTool", "arguments": {}})
    assert refusal.code == -32602
    assert "NoSuchTool" in refusal.message


@pytest.mark.parametrize("tool", ["crash", "imports_nothing", "leave"])
def test_a_bug_in_a_tool_is_an_internal_error_with_a_reference_that_is_in_the_log(connect: Start, tool: str) -> None:
    server = connect()
    refusal = refused(server, "tools/call", {"name": tool})
    assert refusal.code == -32603
    assert re.fullmatch("internal error, reference [0-9a-f]{12}", refusal.message)
    reference = refusal.message.rpartition(" ")[2]
    assert eventually(lambda: reference in server.log())
    assert server.text("echo", {"text": "alive"}) == "alive"


# -- subscriptions


def test_listen_is_acknowledged_first_and_ends_with_a_result(start: Start) -> None:
    server = start(revision=STATELESS)
    wanted = {"toolsListChanged": True, "promptsListChanged": True, "resourceSubscriptions": ["no://such"]}
    id = server.begin("subscriptions/listen", {"notifications": wanted})
    server.wait(lambda message: message.get("method") == "notifications/subscriptions/acknowledged")
    meta = {"io.modelcontextprotocol/subscriptionId": id}
    assert server.notes("notifications/subscriptions/acknowledged") == [
        {"_meta": meta, "notifications": {"toolsListChanged": True, "promptsListChanged": True}}
    ]
    assert server.close() == 0
    last = [message for message in server.messages if message.get("id") == id]
    assert last[0]["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == id
    assert server.notes("notifications/cancelled")[0]["requestId"] == id


NOTHING: list[dict[str, Any]] = [
    {},
    {"toolsListChanged": False, "resourcesListChanged": None},
    {"resourceSubscriptions": []},
    {"resourceSubscriptions": ["no://such", "nothing://x"]},
    {"unknownListChanged": True},
]


@pytest.mark.parametrize("wanted", NOTHING, ids=["empty", "false", "no uris", "unknown uris", "unknown field"])
def test_a_subscription_to_nothing_ends_after_its_acknowledgement(connect: Start, wanted: dict[str, Any]) -> None:
    server = connect(revision=STATELESS)
    id = server.begin("subscriptions/listen", {"notifications": wanted})
    meta = {"io.modelcontextprotocol/subscriptionId": id}
    assert server.result(id)["_meta"]["io.modelcontextprotocol/subscriptionId"] == id
    acknowledged, answer = [message for message in server.messages if str(id) in str(message.get("params", message))]
    assert acknowledged["params"] == {"_meta": meta, "notifications": {}}
    assert answer["id"] == id


@pytest.mark.parametrize("value", ["true", "false", "", 1, 0, [], {}])
def test_a_list_subscription_that_is_no_boolean_is_refused(connect: Start, value: Any) -> None:
    server = connect(revision=STATELESS)
    of_events = [] if "events" in list_deleted() else ["eventsListChanged"]
    for field in ("toolsListChanged", "promptsListChanged", "resourcesListChanged", *of_events):
        refusal = refused(server, "subscriptions/listen", {"notifications": {"toolsListChanged": True, field: value}})
        assert (refusal.code, refusal.message) == (-32602, f"'{field}' must be true or false")


def test_a_cancelled_subscription_is_quiet(start: Start) -> None:
    server = start(revision=STATELESS)
    id = server.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    server.wait(lambda message: message.get("method") == "notifications/subscriptions/acknowledged")
    server.notify("notifications/cancelled", {"requestId": id})
    assert server.request("server/discover")
    assert server.close() == 0
    assert not [message for message in server.messages if message.get("id") == id]
