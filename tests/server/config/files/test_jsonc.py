"""Editing JSON with comments as text: one member changes, and everything else stays byte for byte."""

import json
import random
import re

import pytest

from toolgate.server.config.files.jsonc import ConfigSyntaxError, parse_jsonc, remove_member, set_member

PATH = ("servers", "toolgate")
ENTRY = {"command": "/a b/toolgate", "args": ["--name", 'ä "x"\u2028']}
WITH_OTHERS = [  # texts whose object of servers has members
    '{"servers": {"a": {"b": 1}}}',
    '{"servers":{"a":{"b":1}},"x":[1,2]}',
    '{\n  "servers": {\n    "a": {"b": 1}\n  },\n  "x": 1\n}\n',
    '{\n\t"servers": {\n\t\t"a": 1 // why\n\t\t/* the end */\n\t}\n}',
    '// head\n{\n    "servers": {\n        "a": 1, // trailing comma\n    },\n}\n// tail\n',
    '{\r\n  "servers": {\r\n    "a": "// no comment", /* c */\r\n    "z": 0\r\n  }\r\n}\r\n',
    '\ufeff{\n  /* before */ "servers": {\n    "a": [\n      1, // one\n    ],\n    "b": {}\n  }\n}',
]
WITHOUT = [
    "",
    " \n",
    "// only a comment\n",
    "{}",
    "{ }\n",
    '{"x": 1}',
    '{\n  "x": {\n    "y": "}"\n  } // note\n}\n',
    '{\n    "x": 1,\n}\n',
    '{"servers": {}}',
    '{\n  "servers": {\n    // none yet\n  }\n}\n',
    '{\n  "servers": {}\n}\n',
]
BROKEN = {
    '{"a": 1': "line 1, column 8: a comma or } is missing",
    '{"a": 1}\n}': "line 2, column 1: nothing may follow the value",
    '{"a" 1}': "column 6: a colon is missing",
    '{\n  "a": ,\n}': "line 2, column 8: a value is missing",
    "{a: 1}": "column 2: a name in quotes or } is missing",
    '{"a": "b\n"}': "column 7: this string does not end, or holds what a string can't",
    '{"a": "\\x"}': "column 7: this string does not end, or holds what a string can't",
    '{"a": 01}': "column 7: '01' is not a number",
    '{"a": [1 2]}': "column 10: a comma or ] is missing",
    '{"a": 1 /* }': "column 9: this comment does not end",
    "[]": "the file must hold an object",
    "[" * 100_000: "more than 100 levels",
    '{"a": "\\': "this string does not end",
}


@pytest.mark.parametrize("text", [*WITH_OTHERS, *WITHOUT])
def test_a_member_is_set_and_all_else_stays(text: str) -> None:
    changed = set_member(text, PATH, ENTRY)
    before = parse_jsonc(text)
    assert parse_jsonc(changed) == {**before, "servers": {**before.get("servers", {}), "toolgate": ENTRY}}
    kept = iter(changed)
    assert all(letter in kept for letter in text.strip()), "the old text is a part of the new one, in order"
    assert set_member(changed, PATH, ENTRY) == changed
    assert ("\r\n" in changed) == ("\r\n" in text) and len(re.findall(r"(?<!\r)\n", changed)) == (
        0 if "\r\n" in text else changed.count("\n")
    )


@pytest.mark.parametrize("text", WITH_OTHERS)
def test_a_removed_member_leaves_what_was_there(text: str) -> None:
    assert remove_member(set_member(text, PATH, ENTRY), PATH) == text
    assert remove_member(text, PATH) == text


@pytest.mark.parametrize("key", ["a", "m", "z"])
def test_the_first_a_middle_and_the_last_member_can_be_removed(key: str) -> None:
    for text in (
        '{"servers": {"a": 1, "m": 2, "z": 3}}',
        '{"servers": {\n  "a": 1, // A\n  "m": 2, // M\n  // about z\n  "z": 3\n}}',
        '{"servers": {"a": 1, "m": 2, "z": 3,}}',
    ):
        left = remove_member(text, ("servers", key))
        assert parse_jsonc(left)["servers"] == {name: n for name, n in (("a", 1), ("m", 2), ("z", 3)) if name != key}


def test_an_only_member_leaves_an_empty_object_and_the_comments() -> None:
    assert remove_member('{"servers": {\n  "toolgate": 1\n}}', PATH) == '{"servers": {}}'
    left = remove_member('{"servers": {\n  // mine\n  "toolgate": 1\n}}', PATH)
    assert parse_jsonc(left) == {"servers": {}} and "// mine" in left


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_text_is_refused_with_the_place(text: str) -> None:
    with pytest.raises(ConfigSyntaxError) as refused:
        set_member(text, PATH, ENTRY)
    assert BROKEN[text] in str(refused.value)


@pytest.mark.parametrize("text", ['{"servers": []}', '{"servers": {}, "servers": {"a": 1}}', '{"servers": null}'])
def test_what_can_not_be_edited_is_refused(text: str) -> None:
    with pytest.raises(ConfigSyntaxError, match=r"'servers' is there twice|servers is not an object"):
        set_member(text, PATH, ENTRY)


def test_what_json_reads_is_read_the_same() -> None:
    text = json.dumps({"a": [1.5e3, -2, True, None, '\\"\n\u00e9\U0001f600', {"b": {}}], "c": {"": ""}})
    assert parse_jsonc(text) == json.loads(text)


def write_object(dice: random.Random, depth: int = 0) -> str:
    """Return an object with white space, comments and commas in all the places where they may be."""

    def gap() -> str:
        return dice.choice(["", " ", "\n", "\n  ", "\t", " /* } */ ", '// "{\n', "\n// ,\n    ", "/**/"])

    def value() -> str:
        if depth < 3 and dice.random() < 0.4:
            return write_object(dice, depth + 1)
        return dice.choice(['"a//"', "1", "[]", "{}", "[1, // ]\n]", '"/*"', "-1.5e3"])

    names = ["servers"] if depth == 0 and dice.random() < 0.6 else []
    names += [f"k{number}" for number in range(dice.randint(0, 3))]
    dice.shuffle(names)
    members = [
        f'{gap()}"{name}"{gap()}:{gap()}{write_object(dice, 1) if name == "servers" else value()}{gap()}'
        for name in names
    ]
    return "{" + ",".join(members) + ("," if members and dice.random() < 0.3 else "") + gap() + "}"


def test_any_text_keeps_all_its_comments_and_comes_back() -> None:
    dice = random.Random(19)
    for _ in range(400):
        text = write_object(dice)
        changed = set_member(text, PATH, ENTRY)
        kept = iter(changed)
        assert all(letter in kept for letter in text if letter not in " \t\n"), text
        servers = parse_jsonc(text).get("servers", {})
        if servers:
            assert remove_member(changed, PATH) == text
        for key in servers:  # each is the first, a middle or the last member
            assert key not in parse_jsonc(remove_member(changed, ("servers", key)))["servers"]
