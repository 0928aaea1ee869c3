"""A small message is read as a request first, and means what it means when it is larger."""

import json
from typing import Any

import pytest

from toolgate.server.protocol.messages import MAX_ID, PLAIN, MalformedMessage, Request, decode

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


def shape(decoded: Any) -> Any:
    """Return what is compared of a message; an error's text may name a place in it."""
    if isinstance(decoded, list):
        return [shape(each) for each in decoded]
    return (decoded.id, type(decoded.error)) if isinstance(decoded, MalformedMessage) else decoded


@pytest.mark.parametrize("text", TEXTS)
def test_a_message_means_the_same_in_each_size(text: str) -> None:
    data = text.encode("latin-1")
    small = decode(data)
    assert shape(small) == shape(decode(data + b" " * PLAIN))
    assert shape(small) == shape(decode(b" " * PLAIN + data))


def test_a_plain_request_is_a_request() -> None:
    assert decode(json.dumps(PLAIN_REQUEST).encode()) == Request(7, "ping", {"a": [1, None, {"b": "c"}]})
