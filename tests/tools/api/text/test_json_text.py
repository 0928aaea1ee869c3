"""`decode_json` raises one error for whatever is wrong."""

import msgspec
import pytest

from toolgate.tools.api.text.json_text import JsonError, decode_json


class Pair(msgspec.Struct):
    a: int = 0


@pytest.mark.parametrize("data", [b"", b"{", b'"\xff"', b'{"a": "\xff"}', b"\xff", b"[" * 100_000, b'"text"', "\ud800"])
def test_what_is_not_json_of_the_type_is_one_error(data: bytes | str) -> None:
    with pytest.raises(JsonError):
        decode_json(data, dict[str, int])


def test_a_value_is_returned_as_the_type() -> None:
    assert decode_json(b'{"a": 1}', dict[str, int]) == {"a": 1} == decode_json('{"a": 1}')


def test_a_member_that_the_type_lacks_is_utf_8_too() -> None:
    with pytest.raises(JsonError, match="not UTF-8"):
        decode_json(b'{"a\xff": 1}', Pair)
