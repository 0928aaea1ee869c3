"""Ids of messages: whole numbers in each spelling, and the ids of messages that can't be read."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.raw_client import Server
from toolgate.server.protocol.message_ids import EDGE, EXACT, MAX_ID, MessageEdges, find_id
from toolgate.server.protocol.message_limits import MAX_STRUCTURE
from toolgate.server.protocol.messages import MalformedMessage, Request, Response, decode
from toolgate.transports.stdio import MAX_LINE

Start = Callable[..., Server]

LINE = b'{"jsonrpc":"2.0","id":%s,"method":"ping"}\n'


# -- whole numbers


@pytest.mark.parametrize(("spelled", "id"), [(b"7.0", 7.0), (b"-2.00", -2.0), (b"3e1", 30.0), (b"2.5e1", 25.0)])
def test_a_whole_number_is_an_id_and_comes_back_equal(connect: Start, spelled: bytes, id: float) -> None:
    server = connect()
    server.write(LINE % spelled)
    answer = server.wait(lambda message: message.get("id") == id)
    assert answer["result"] == {} and type(answer["id"]) is float


@pytest.mark.parametrize("spelled", [b"1.5", b"1e300", b"9007199254740994.0", b"-0.1", b"true", b"[7.0]", b'{"a":1}'])
def test_other_numbers_and_values_are_no_id(connect: Start, spelled: bytes) -> None:
    server = connect()
    server.write(LINE % spelled)
    answer = server.wait(lambda message: "error" in message)
    assert (answer["id"], answer["error"]["code"]) == (None, -32600)
    assert "'id' must be a string or an integer" in answer["error"]["message"]


def test_a_whole_number_is_an_id_in_each_size_of_a_message_and_in_an_answer() -> None:
    for size in (0, 5_000, MAX_STRUCTURE + 1):
        assert decode(LINE % b"7.0" + b" " * size) == Request(7.0, "ping")
    assert decode(b'{"jsonrpc":"2.0","id":7.0,"result":{}}') == Response(7, {})
    assert decode(LINE % (b"%d.0" % EXACT)) == Request(float(EXACT), "ping")


def test_equal_numbers_are_one_id_in_flight(connect: Start) -> None:
    server = connect()
    id = server.begin("tools/call", {"name": "wait", "arguments": {"seconds": 0.5}})
    server.send({"id": float(id), "method": "ping"})
    assert server.wait(lambda message: "error" in message)["error"]["code"] == -32600
    assert server.wait(lambda message: message.get("id") == id and "result" in message)


def test_a_whole_number_cancels_the_request_of_that_number(connect: Start) -> None:
    server = connect()
    id = server.begin("tools/call", {"name": "wait", "arguments": {"seconds": 30}}, progressToken="t")
    server.wait(lambda message: message.get("method") == "notifications/progress")
    server.notify("notifications/cancelled", {"requestId": float(id)})
    assert server.text("echo", {"text": "on"}) == "on"
    assert not [message for message in server.messages if message.get("id") == id]


@pytest.mark.parametrize("token", [1.0, 1, "1"])
def test_progress_carries_its_token_as_it_was_sent(connect: Start, token: Any) -> None:
    server = connect()
    server.call("climb", progressToken=token)
    told = [note["progressToken"] for note in server.notes("notifications/progress")]
    assert told and {(type(each), each) for each in told} == {(type(token), token)}


def test_a_number_with_a_fraction_is_no_progress_token(connect: Start) -> None:
    server = connect()
    server.call("climb", progressToken=1.5)
    assert server.notes("notifications/progress") == []


# -- messages that can't be read

FIRST = b'{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{"name":"echo","arguments":{"text":VALUE}}}'
LAST = b'{"method":"tools/call","params":{"name":"echo","arguments":{"text":VALUE}},"jsonrpc":"2.0","id":ID}'
DEEP = b"[" * 20_000 + b"]" * 20_000  # Python 3.13 reads some 10,000, those before fewer than 3,000
UNREADABLE = [b"NaN", b"-Infinity", b'"\xff"', b'"\xed\xa0\x80"', b"01", b"'x'", b'"a\nb"', DEEP]


def call(form: bytes, id: bytes, value: bytes) -> bytes:
    return form.replace(b"ID", id).replace(b"VALUE", value)


@pytest.mark.parametrize("id", [b"7", b"-7", b"7.0", b'"seven"', '"sévén\\n"'.encode(), b'"\\"id\\":8"'])
@pytest.mark.parametrize("value", UNREADABLE)
@pytest.mark.parametrize("form", [FIRST, LAST])
def test_a_message_that_is_no_json_is_refused_under_its_id(form: bytes, value: bytes, id: bytes) -> None:
    refused = decode(call(form, id, value))
    assert isinstance(refused, MalformedMessage)
    assert (refused.id, refused.error.code) == (json.loads(id), -32700)


@pytest.mark.parametrize("value", [b"NaN", b'"\xff"', b'"\xed\xa0\x80"'])
def test_a_client_learns_which_of_its_messages_is_no_json(connect: Start, value: bytes) -> None:
    server = connect()
    server.write(call(LAST, b'"mine"', value) + b"\n")
    answer = server.wait(lambda message: message.get("id") == "mine")
    assert answer["error"]["code"] == -32700


@pytest.mark.parametrize("form", [FIRST, LAST])
def test_a_message_with_too_many_values_is_refused_under_its_id(connect: Start, form: bytes) -> None:
    many = b"[" + b"{}," * MAX_STRUCTURE + b"0]"
    server = connect()
    server.write(call(form, b'"mine"', many) + b"\n")
    answer = server.wait(lambda message: message.get("id") == "mine")
    assert answer["error"]["code"] == -32600


@pytest.mark.parametrize(
    ("data", "id"),
    [
        (b'{"jsonrpc":"2.0","method":"a","id":7,"params":{"id":8,"x":NaN}}', 7),
        (b'{"jsonrpc":"2.0","method":"a","params":{"id":8,"x":NaN},"id":7}', 7),
        (b'{"jsonrpc":"2.0","params":{"x":NaN},"id":7,"method":"a"}', 7),
        (b'{"jsonrpc":"2.0","params":{"x":NaN},"id":7,"x":"}","y":null,"z":-1.5e3}\r\n', 7),
        (b' { "id" : 7 , "method" : NaN } ', 7),
        (b'{"jsonrpc":"2.0","method":"a","params":{"id":8,"x":NaN}}', None),
        (b'{"jsonrpc":"2.0","method":"a","params":{"x":NaN,"id":8}}', None),
        (b'{"jsonrpc":"2.0","method":"a","params":{"x":NaN,"y":",\\"id\\":8}"}}', None),
        (b'{"jsonrpc":"2.0","method":"\\"id\\":8,","params":{"x":NaN}}', None),
        (b'{"method":"id","x":"id","params":{"x":NaN}}', None),
        (b'{"id":null,"params":{"x":NaN}}', None),
        (b'{"id":NaN}', None),
        (b'{"id":1.5,"params":{"x":NaN}}', None),
        (b'{"id":"\xff"}', None),
        (b'{"id":"\xed\xa0\x80"}', None),
        (b'[{"id":7,"method":NaN}]', None),
        (b'"id":7}', None),
    ],
)
def test_the_id_of_the_message_itself_is_found(data: bytes, id: Any) -> None:
    assert find_id(data) == id
    refused = decode(data)
    assert isinstance(refused, MalformedMessage) and refused.id == id


def test_an_id_is_found_within_the_ends_of_a_message() -> None:
    for size in (0, EDGE, EDGE * 3, EDGE * 3 + 1):
        text = b'"' + b"x" * size + b'"'
        for form in (call(FIRST, b"7", text), call(LAST, b"7", text)):
            edges = MessageEdges()
            for begin in range(0, len(form), 777):
                edges.add(form[begin : begin + 777])
            assert edges.find_id() == find_id(form) == 7
    assert find_id(call(LAST, b'"%s"' % (b"x" * (MAX_ID + 1)), b"NaN")) is None


@pytest.mark.parametrize("form", [FIRST, LAST])
@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_line_that_is_too_long_is_refused_under_its_id(probe: Start, form: bytes, end: bytes) -> None:
    server = probe()
    text = b'"' + b"y" * (MAX_LINE + 2**20) + b'"'
    server.write(call(form, b"11", text) + end)
    if not end:
        assert server.close() == 0
    answer = server.wait(lambda message: message.get("id") == 11)
    assert answer["error"]["code"] == -32600 and "more than" in answer["error"]["message"]
    if end:
        assert server.text("echo", {"text": "on"}) == "on"


# -- invalid UTF-8

CALL = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x"}}}'
PLACES = {
    "a value": CALL.replace(b'"x"', b'"?"'),
    "a name": CALL.replace(b'"text"', b'"?"'),
    "a method": CALL.replace(b'"tools/call"', b'"?"'),
    "a member of its own": CALL[:-1] + b',"more":"?"}',
    "the name of one": CALL[:-1] + b',"?":1}',
    "an object in one": CALL[:-1] + b',"more":{"a":[1,"?"]}}',
    "a result beside": CALL[:-1] + b',"result":"?"}',
    "a member that is repeated": CALL.replace(b'"method"', b'"method":"?","method"'),
    "params that are repeated": CALL.replace(b'"params"', b'"params":{"a":"?"},"params"'),
    "a repeated name in params": CALL.replace(b'"arguments"', b'"arguments":{"a":"?"},"arguments"'),
    "a meta that is repeated": CALL.replace(b'"arguments"', b'"_meta":{"a":"?"},"_meta":{},"arguments"'),
    "an id that is repeated": CALL.replace(b'"id"', b'"id":"?","id"'),
    "a version that is repeated": CALL.replace(b'"jsonrpc"', b'"jsonrpc":"?","jsonrpc"'),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("bad", [b"\xff", b"\xed\xa0\x80", b"\xed\xb0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xc3"])
def test_bytes_that_are_no_utf_8_are_refused_wherever_they_are(place: str, bad: bytes) -> None:
    data = PLACES[place].replace(b"?", bad)
    for padded in (data, data + b" " * 5_000, data.replace(b'"x"', b'"\\ud800"'), data + b" " * MAX_STRUCTURE):
        refused = decode(padded)
        assert isinstance(refused, MalformedMessage) and refused.error.code == -32700


def test_a_message_in_another_encoding_is_refused() -> None:
    for encoding in ("utf-16", "utf-16-le", "utf-32", "utf-8-sig"):
        refused = decode(CALL.decode().encode(encoding))
        assert isinstance(refused, MalformedMessage) and refused.error.code == -32700


def test_an_id_with_half_of_a_surrogate_pair_is_refused() -> None:
    """Its answer would carry another id."""
    refused = decode(LINE % b'"\\ud83d"')
    assert isinstance(refused, MalformedMessage)
    assert (refused.id, refused.error.code) == (None, -32600) and "surrogate" in refused.error.message
    assert decode(LINE % b'"\\ud83d\\ude00"') == Request("😀", "ping")
