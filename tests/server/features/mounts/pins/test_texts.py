"""What a person is shown of a change: each value on a line, whatever is hidden in it, and what to look at twice."""

import re
from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest

from tests.servers.line_counter import counted_lines
from toolgate.server.features.mounts.pins.definitions import define
from toolgate.server.features.mounts.pins.difference import format_definition, format_difference, show_unseen
from toolgate.server.features.mounts.pins.marks import find_marks
from toolgate.server.features.mounts.pins.outlines import create_outline

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


def test_lines_that_stay_are_not_shown() -> None:
    names = ["one.", "two.", "three.", "four.", "five."]
    before = encode({"a": " ".join(names), "enum": [1, 2, 3], "y": 1, "z": "x. x. x."})
    after = encode(
        {"a": " ".join(["new.", *names[:2], "other.", *names[3:]]), "enum": [1, 5, 3, 4], "y": 1, "z": "x. y. x."}
    )
    assert format_difference(before, after) == [
        '+ a: "new. "',
        '- a: "three. "',
        '+ a: "other. "',
        "- enum[1]: 2",
        "+ enum[1]: 5",
        "+ enum[3]: 4",
        '- z: "x. "',
        '+ z: "y. "',
    ]
    assert format_difference(before, before)[0] == '+ a: "one. "'


def test_a_change_behind_many_lines_is_shown() -> None:
    many = {f"a{number:05}": number for number in range(5_000)}
    assert format_difference(encode({**many, "z": 1}), encode({**many, "z": 2})) == ["- z: 1", "+ z: 2"]


def make_enum(count: int, sign: str) -> object:
    return {"enum": [f"{sign}{number}" for number in range(count)]}


def make_moved(count: int, sign: str) -> object:
    order = range(count) if sign == "a" else range(count, 0, -1)
    return {"description": " ".join(f"{number}." for number in order)}


def make_repeated(count: int, sign: str) -> object:
    return {"description": "x. y. " * count if sign == "a" else "y. z. x. " * count}


def make_deep(count: int, sign: str) -> object:
    """Return a long name above many values."""
    return {"k" * 10 * count: [sign] * count}


@pytest.mark.parametrize("make", [make_enum, make_moved, make_repeated, make_deep])
def test_the_work_and_the_lines_of_a_difference_grow_with_a_form(make: Callable[[int, str], object]) -> None:
    costs = list[tuple[int, int]]()
    for count in (200, 800, 3_200):
        before, after = encode(make(count, "a")), encode(make(count, "b"))
        with counted_lines() as counted:
            shown = format_difference(before, after)
        costs.append((counted.lines, sum(map(len, shown))))
    for (lines, length), (more_lines, more_length) in pairwise(costs):
        assert more_lines < 5 * lines and more_length < 5 * length, costs


def test_a_form_that_is_nested_deeply_is_shown() -> None:
    value: object = "end"
    for _ in range(900):
        value = [value]
    (line,) = format_definition(encode({"a": value}))
    assert line.endswith('[0]: "end"') and len(line) < 1_000


def test_of_a_form_that_is_too_large_the_changed_fields_are_named() -> None:
    first, second = (
        create_outline(encode({"name": "a", "description": sign * 70_000, "schema": "x" * 9_000})) for sign in "ab"
    )
    changed = format_difference(first, second)
    assert [re.sub(r"\([0-9a-f]{8}\)", "(…)", line) for line in changed] == [
        "- description: 70,002 bytes (…)",
        "+ description: 70,002 bytes (…)",
    ]
    assert format_difference(encode({"name": "a"}), first)[-1].startswith("+ schema: 9,002 bytes (")
    assert format_definition(create_outline(encode("a" * 70_000)))[0].startswith("70,002 bytes (")
    assert find_marks(create_outline(encode({"a": "send_mail", "b": "b" * 70_000})), OTHERS) == [
        "is longer than 64 KiB, and only its short fields are shown: ask its maker for the others, or keep it out",
        "names tools of other servers: send_mail",
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
