"""What a person is shown of a change: each value on a line, whatever is hidden in it, and what to look at twice."""

import msgspec
import pytest

from toolgate.server.features.mounts.pins.definitions import define
from toolgate.server.features.mounts.pins.difference import format_definition, format_difference, show_unseen
from toolgate.server.features.mounts.pins.marks import find_marks

OTHERS = {"far2__send_mail", "send_mail", "WebSearch"}


def encode(value: object) -> bytes:
    return msgspec.json.encode(value)


def test_each_value_is_a_line_and_texts_are_cut_at_sentences() -> None:
    item = {"name": "a", "b": {"z": [], "y": [1.0, {"x": None}]}, "odd key": {}, "text": "One. Two\nthree"}
    assert format_definition(encode(item)) == [
        "b.y[0]: 1.0",
        "b.y[1].x: null",
        "b.z: []",
        'name: "a"',
        '"odd key": {}',
        'text: "One. "',
        'text: "Two\\n"',
        'text: "three"',
    ]
    before, after = encode({"a": "One. Two."}), encode({"a": "One. Three."})
    assert format_difference(before, after) == [
        '- a: "Two."',
        '+ a: "Three."',
    ]


def test_a_hidden_character_in_a_name_or_a_value_is_shown() -> None:
    assert format_definition(encode({"k\u200b": "a\u202eb\x1b[2K\U000e0041"})) == [
        '"k<U+200B>": "a<U+202E>b\\u001b[2K<U+E0041>"'
    ]
    assert show_unseen("\x1b[2K\r") == "<U+001B>[2K<U+000D>"


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("plain, and accents: é, 日本, “quotes”", []),
        ("a picture 👩\u200d💻 \u2764\ufe0f 1\ufe0f\u20e3 \u2708\ufe0e", []),
        ("👩🏽\u200d❤\ufe0f\u200d💋\u200d👨🏽 🏳\ufe0f\u200d🌈", []),
        ("ශ\u0dca\u200dරී, क\u094d\u200dष", []),
        ("❤\ufe0f\ufe0f", ["has invisible characters: <U+FE0F>"]),
        ("a" + "\ufe0e\ufe0f" * 40, ["has invisible characters: <U+FE0E>, <U+FE0F>"]),
        ("word.\ufe0f", ["has invisible characters: <U+FE0F>"]),
        ("日\ufe0e, 1\ufe0f", ["has invisible characters: <U+FE0E>, <U+FE0F>"]),
        ("é\u200dé", ["has invisible characters: <U+200D>"]),
        ("日\u200d本", ["has invisible characters: <U+200D>"]),
        ("👩\u200d\u200d💻", ["has invisible characters: <U+200D>"]),
        ("👩\u200d💻\u200d", ["has invisible characters: <U+200D>"]),
        ("क\u200dष, क\u094d\u200d", ["has invisible characters: <U+200D>"]),
        ("می\u200cخواهم", ["has invisible characters: <U+200C>"]),
        ("send🙂mail", []),
        ("a\u200db", ["has invisible characters: <U+200D>"]),
        ("a\u200bb\U000e0041", ["has invisible characters: <U+200B>, <U+E0041>"]),
        ("\u202etxet", ["turns the direction of writing: <U+202E>"]),
        ("call send_mail, then far2__send_mail", ["names tools of other servers: far2__send_mail, send_mail"]),
        ("better than WebSearch", ["names tools of other servers: WebSearch"]),
        ("resend_mails", []),
        ("a\nb\tc", []),
    ],
)
def test_marks(text: str, marks: list[str]) -> None:
    assert find_marks(encode({"inputSchema": {"properties": {"a": {"description": text}}}}), OTHERS) == marks
    assert find_marks(encode({text: 1}), OTHERS) == marks


def test_the_order_of_keys_is_no_change_and_the_kind_of_a_number_is_one() -> None:
    first, second, third = (
        define("tool", "a", value) for value in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1.0, "b": 2})
    )
    assert first is not None and second is not None and third is not None
    assert first.digest == second.digest != third.digest
