"""A small message is read as a request first, and means what it means when it is larger."""

import json
from typing import Any

import pytest

from toolgate.server.protocol.message_ids import MAX_ID
from toolgate.server.protocol.messages import (
    PLAIN,
    MalformedMessage,
    Request,
    decode,
)

PLAIN_REQUEST = {"jsonrpc": "2.0", "id": 7, "method": "ping", "params": {"a": [1, None, {"b": "c"}]}}
WITHOUT: list[Any] = [{name: value for name, value in PLAIN_REQUEST.items() if name != left} for left in PLAIN_REQUEST]
CHANGED: list[Any] = [
    {**PLAIN_REQUEST, name: value}
    for name, value in (
        *(("jsonrpc", value) for value in ("1.0", "2.00", "", 2.0, None)),
        *(("id", value) for value in (None, True, 1.0, 1.5, -1, 2**63, 2**64, 2**80, [1], {}, "")),
        *(("id", "x" * size) for size in (MAX_ID, MAX_ID + 1)),
        *(("method", value) for value in (None, 1, "", "\ud800", ["ping"])),
        *(("params", value) for value in (None, [], [1], "x", 1, {}, {"\ud800": "\udfff"})),
        *((name, value) for name in ("result", "error") for value in (None, {}, 1)),
        ("more", {"x": 1}),
    )
]
ODD: list[Any] = [[], [PLAIN_REQUEST], [PLAIN_REQUEST, 1], 1, None, "x", {}, {"id": 1}, {"result": 1, "id": 1}]
TEXTS = [
    *(json.dumps(value) for value in (PLAIN_REQUEST, *WITHOUT, *CHANGED, *ODD)),
    '{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}',
    '{"jsonrpc":"2.0","id":1,"method":"a","params":{"n":1e999}}',
    '{"jsonrpc":"2.0","id":1,"method":"a","result":1e999}',
    '{"jsonrpc":"2.0","id":1,"method":"a","error":"\xff"}',
    '{"jsonrpc":"2.0","id":1e2,"method":"a"}',
    '{"jsonrpc":"2.0","id":1,"method":"a"} {}',
    '{"jsonrpc":"2.0","id":1,"method":"a"',
    '{"jsonrpc":"2.0","id":1,"method":"\xff"}',
    '{"jsonrpc":"2.0","id":1,"method":"a","params":' + "[" * 2_000,
    "",
]

META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "client": {"name": "tests", "n": [1, 2.5, None]}}
CALL = {
    "jsonrpc": "2.0",
    "id": 7,
    "method": "tools/call",
    "params": {"name": "a", "arguments": {"b": 1}, "_meta": META},
}
CALLS: list[Any] = [
    *(
        {**CALL, "params": {**CALL["params"], name: value}}
        for name in CALL["params"]
        for value in (None, 1, [], {}, "x")
    ),
    *({**CALL, "params": {k: v for k, v in CALL["params"].items() if k != name}} for name in CALL["params"]),
    *({**CALL, "params": {**CALL["params"], "_meta": {**META, name: 1}}} for name in ("client", "more")),
    {**CALL, "params": {"arguments": {"_meta": META}, "name": "a", "_meta": {}}},
    {**CALL, "params": {**CALL["params"], "task": {"ttl": 1}}},
    {**CALL, "id": "x" * MAX_ID},
    {**CALL, "id": "x" * (MAX_ID + 1)},
    {**CALL, "method": "prompts/get"},
    {**CALL, "result": 1},
    [CALL, CALL],
]
SPELLED = json.dumps(META)
CALL_TEXTS = [
    *TEXTS,
    *map(json.dumps, CALLS),
    json.dumps(CALL, indent=1),
    json.dumps(CALL).replace('"tests"', '"\\u0074ests"'),
    json.dumps(CALL).replace('"_meta"', '"\\u005fmeta"'),
    json.dumps(CALL).replace('"_meta": ', '"_meta": {}, "_meta": '),
    json.dumps(CALL).replace(SPELLED, SPELLED + ', "_meta": {}'),
    json.dumps(CALL).replace(SPELLED, SPELLED[:-1] + ', "x": "\xff"}'),
    json.dumps(CALL).replace('"b": 1', '"b": "\xff"'),
    json.dumps(CALL).replace('"b": 1', '"b": 1e999'),
    json.dumps(CALL).replace(SPELLED, "[" * 2_000),
    json.dumps(CALL) + " 1",
    json.dumps(CALL)[:-1],
]


def shape(decoded: Any) -> Any:
    """Return what is compared of a message; an error's text may name a place in it."""
    if isinstance(decoded, list):
        return [shape(each) for each in decoded]
    return (decoded.id, type(decoded.error)) if isinstance(decoded, MalformedMessage) else decoded


@pytest.mark.parametrize("text", [*TEXTS, *CALL_TEXTS])
def test_a_message_means_the_same_in_each_size(text: str) -> None:
    data = text.encode("latin-1")
    small = decode(data)
    assert shape(small) == shape(decode(data + b" " * PLAIN))
    assert shape(small) == shape(decode(b" " * PLAIN + data))


def test_a_plain_request_is_a_request() -> None:
    assert decode(json.dumps(PLAIN_REQUEST).encode()) == Request(7, "ping", {"a": [1, None, {"b": "c"}]})
