"""The limits of large messages: how many values they may hold, and how that is measured."""

import json
import random
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from tests.clients.raw_client import COMMAND, Server
from tests.clients.raw_http_client import site, spoken
from toolgate.server.features.telemetry.audit.recorder import digest
from toolgate.server.protocol.message_ids import MAX_ID
from toolgate.server.protocol.message_limits import (
    MAX_ESCAPES,
    MAX_STRUCTURE,
    OTHERS,
    PIECE,
    TooLargeError,
    measure,
)
from toolgate.server.protocol.messages import (
    MAX_LENIENT,
    MAX_LENIENT_STRUCTURE,
    MalformedMessage,
    Request,
    decode,
)
from toolgate.tools.api.tool import MAX_ARGUMENT

LARGEST = 16 * 2**20 - 1_024
STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)


def message(params: bytes, id: bytes = b"7") -> bytes:
    return b'{"jsonrpc":"2.0","id":%s,"method":"ping","params":{"a":%s}}' % (id, params)


def filled(unit: bytes, size: int, last: bytes = b"0") -> bytes:
    """Return an array of `unit`s."""
    return b"[" + unit * ((size - len(last)) // len(unit)) + last + b"]"


def structure(data: bytes) -> int:
    """Return the number of bytes outside of strings that values are counted by."""
    return len(STRING.sub(b" ", data).translate(None, OTHERS))


HOSTILE: dict[str, Callable[[], bytes]] = {  # made when they are needed: 16 MiB each
    "objects": lambda: filled(b"{},", LARGEST),
    "arrays": lambda: filled(b"[],", LARGEST),
    "deep": lambda: filled(b"[" * 400 + b"]" * 400 + b",", LARGEST),
    "keys": lambda: b"{" + b",".join(b'"%x":0' % number for number in range(1_200_000)) + b"}",
    "strings": lambda: filled(b'"",', LARGEST),
    "numbers": lambda: filled(b"1.234567890123456789012345678901e-300,", LARGEST),
    "beyond": lambda: filled(b"1e999,", LARGEST),
    "a lone surrogate": lambda: filled(b"{},", LARGEST, b'"\\ud800"'),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_message_of_many_values_is_refused_before_it_is_decoded(kind: str) -> None:
    data = message(HOSTILE[kind]())
    began = time.process_time()
    found = decode(data)

    assert isinstance(found, MalformedMessage) and found.error.code == -32600
    assert time.process_time() - began < 0.5  # decoding them took up to 8 seconds, and a gigabyte


def test_a_refused_message_is_answered_under_its_id() -> None:
    for id in (b"7", b'"seven"'):
        found = decode(message(filled(b"{},", MAX_STRUCTURE + 100), id))
        assert found == MalformedMessage(json.loads(id), found.error)  # type: ignore[union-attr]
        assert "objects, arrays and numbers" in found.error.message  # type: ignore[union-attr]
    assert decode(message(filled(b"{},", MAX_STRUCTURE + 100), b"[]")).id is None  # type: ignore[union-attr]


@pytest.mark.parametrize("content", [b"a", b"\\n", b'\\"', b"\\\\", "é".encode(), b'{\\"a\\": [1, 2]},\\n'])
def test_a_string_may_be_as_large_as_a_body(content: bytes) -> None:
    many = min(LARGEST // len(content), MAX_ESCAPES // max(content.count(b"\\"), 1))
    text = b'"' + content * many + b'"'
    found = decode(message(text))
    assert isinstance(found, Request) and found.params == {"a": json.loads(text)}


@pytest.mark.parametrize("shift", range(4))
def test_an_escape_may_lie_across_two_pieces(shift: int) -> None:
    head = message(b"").index(b"}}")
    for escapes in (b"\\\\", b'\\"', b"\\\\\\\\"):
        text = b'"' + b"a" * (PIECE - head - 4 + shift) + escapes * 3 + b'"'
        assert isinstance(decode(message(text)), Request)
        many = message(b'{"b":' + text + b',"c":' + filled(b"{},", MAX_STRUCTURE) + b"}")
        assert isinstance(decode(many), MalformedMessage)


def test_all_outside_of_strings_is_counted_and_nothing_inside() -> None:
    """A message at the limit is decoded; one more value is too much."""
    random.seed(8)
    for _ in range(10):
        words = ["".join(random.choices('ab"\\\n{[,:é😀e-300', k=random.randrange(40))) for _ in range(2_000)]
        data = message(json.dumps(words, ensure_ascii=random.random() < 0.5).encode()[:-1] + b",%s]")
        room = MAX_STRUCTURE - structure(data) - 4
        assert isinstance(decode(data % filled(b"{},", room)), Request)
        assert isinstance(decode(data % filled(b"{},", room + 200)), MalformedMessage)


@pytest.mark.parametrize("others", [b" ", b"\n", b"true", b'"', b'\\"', "é".encode(), b"e", b"1e300"])
def test_structure_in_strings_does_not_count(others: bytes) -> None:
    """A text of any characters is taken, and what is behind it is counted."""
    text = json.dumps((others.decode() + "[{1,2}]") * (MAX_STRUCTURE // 4)).encode()
    assert structure(message(text)) < 100
    assert isinstance(decode(message(text)), Request)
    many = message(b'{"b":' + text + b',"c":' + filled(b"{},", MAX_STRUCTURE) + b"}")
    assert isinstance(decode(many), MalformedMessage)


def test_a_message_is_measured_like_its_structure_alone() -> None:
    """What is counted as if nothing were in strings never hides what is outside of them."""
    random.seed(9)
    for limit in (20, 200, 2_000):
        for _ in range(300):
            units = random.choices(
                ['"', "\\", '"', "a", "e300", "[", "{", ",", "7", " "], k=random.randrange(2 * limit)
            )
            data = json.dumps([random.random(), "".join(units)] * random.randrange(3)).encode()
            is_large = structure(data) > limit
            if is_large:
                with pytest.raises(TooLargeError):
                    list(measure(data, limit))
            else:
                assert list(measure(data, limit)) == []


def test_spaces_and_literals_take_no_room_of_values() -> None:
    assert isinstance(decode(message(filled(b"true,", MAX_STRUCTURE * 4))), Request)
    assert isinstance(decode(message(b"[" + b" " * MAX_STRUCTURE * 2 + b"]")), Request)
    assert isinstance(decode(message(filled(b"true,", MAX_STRUCTURE * 6))), MalformedMessage)


def test_a_message_of_the_size_of_its_limit_may_hold_anything() -> None:
    for unit in (b"5e-324,", b"{},", b'"",', b"[],"):
        assert isinstance(decode(message(filled(unit, MAX_STRUCTURE - 100))), Request)


@pytest.mark.parametrize(
    "number", ["5e-324", "1.7976931348623157e308", "1E-100", "2.2250738585072011e-308", "0.1", "1e2"]
)
def test_a_number_with_an_exponent_has_its_value(number: str) -> None:
    for size in (100, 200_000):
        found = decode(message(filled(b"%s," % number.encode(), size, number.encode())))
        assert isinstance(found, Request) and set(found.params["a"]) == {float(number)}


def lenient(size: int, structure: int = 0) -> Any:
    tail = b',"\\ud800"'
    data = message(filled(b"{},", structure + 2) + tail) if structure else message(b'"' + b"a" * size + b'\\ud800"')
    return decode(data.replace(b'],"\\ud800"', b',"\\ud800"]'))


def test_a_lone_surrogate_is_taken_in_a_message_of_some_size_only() -> None:
    assert lenient(MAX_LENIENT - 200).params["a"][-1] == "?"
    assert lenient(0, MAX_LENIENT_STRUCTURE - 200).params["a"][-1] == "?"
    for refused in (lenient(MAX_LENIENT), lenient(0, MAX_LENIENT_STRUCTURE + 200)):
        assert isinstance(refused, MalformedMessage) and refused.error.code == -32700


def test_an_id_is_short() -> None:
    assert isinstance(decode(message(b"0", b'"%s"' % (b"a" * MAX_ID))), Request)
    assert decode(message(b"0", b'"%s"' % (b"a" * (MAX_ID + 1)))) == MalformedMessage(None, ANY)


def test_a_tool_that_is_built_in_takes_texts_of_some_size(connect: Callable[..., Server]) -> None:
    server = connect()
    text = "#" + "a" * (MAX_ARGUMENT - 1)
    (own,) = server.call("Bash", {"command": text})["content"]
    assert own["text"] == "(no output)"
    (told,) = server.call("Bash", {"command": f"{text}a"})["content"]
    assert told["text"] == "Bash: argument 'command' has 1048577 characters, at most 1048576 are allowed"


def test_large_arguments_are_digested_as_small_ones_are(tmp_path: Path) -> None:
    with site(tmp_path) as listening, spoken(listening, "http") as server:
        arguments = {"command": "#" + "a" * 500_000}
        server.call("Bash", arguments)
        told = subprocess.run(
            [COMMAND, "audit", "--json", "--state", str(listening.state)], capture_output=True, text=True, check=True
        ).stdout
        assert json.loads(told.splitlines()[-1])["digest"] == digest(arguments)


def test_text_in_escapes_of_six_characters_is_taken_and_more_escapes_are_not() -> None:
    assert isinstance(
        decode(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"%s"}}' % (b"\\u00e9" * 2_796_000)), Request
    )
    found = decode(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"%s"}}' % (b"\\n" * (MAX_ESCAPES + 1)))
    assert isinstance(found, MalformedMessage) and "escaped" in found.error.message
