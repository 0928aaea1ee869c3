"""Elicitation forms: parsing a person's input, and errors for answers that don't fit."""

from typing import Any

import pytest

from toolgate.server.calls import forms

EVERY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name", "minLength": 2, "maxLength": 5},
        "mail": {"type": "string", "format": "email"},
        "site": {"type": "string", "format": "uri"},
        "day": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "score": {"type": "number"},
        "sure": {"type": "boolean", "default": False},
        "color": {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]},
        "size": {"type": "string", "oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}, "minItems": 1, "maxItems": 2},
        "kinds": {"type": "array", "items": {"anyOf": [{"const": "x", "title": "An X"}]}},
    },
    "required": ["name"],
}
FIELDS = {field.name: field for field in forms.parse_fields(EVERY)}


@pytest.mark.parametrize(
    ("name", "words", "value"),
    [
        ("name", "Ada", "Ada"),
        ("mail", "ada@example.com", "ada@example.com"),
        ("site", "https://example.com/x?y=z", "https://example.com/x?y=z"),
        ("day", "2026-07-28", "2026-07-28"),
        ("at", "2026-07-28T09:30", "2026-07-28T09:30"),
        ("at", "2026-07-28T09:30:00Z", "2026-07-28T09:30:00Z"),
        ("age", " 42 ", 42),
        ("score", "-1", -1),
        ("score", "2.5", 2.5),
        ("sure", "Yes", True),
        ("sure", "n", False),
        ("color", "r", "r"),
        ("color", "Green", "g"),
        ("color", "2", "g"),
        ("size", "Large", "l"),
        ("tags", "a, 3", ["a", "c"]),
        ("kinds", "1", ["x"]),
        ("kinds", "", []),
    ],
)
def test_a_persons_words_are_read_as_the_field_means_them(name: str, words: str, value: Any) -> None:
    read = FIELDS[name].parse(words)
    assert (read, type(read)) == (value, type(value))
    assert forms.find_error(EVERY, {"name": "Ada", name: read}) is None


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        ("name", "", "required"),
        ("name", "A", "at least 2"),
        ("name", "Augusta", "at most 5"),
        ("mail", "ada", "email"),
        ("site", "example.com", "URL"),
        ("day", "28.7.2026", "date"),
        ("at", "2026-07-28", "time"),
        ("age", "4.5", "whole"),
        ("age", "-1", "at least 0"),
        ("age", "9" * 400, "at most 150"),
        ("age", "9" * 5_000, "whole"),
        ("score", "much", "number"),
        ("score", "nan", "number"),
        ("score", "1e999", "number"),
        ("sure", "maybe", "y or n"),
        ("color", "3", "one of the options"),
        ("color", "0", "one of the options"),
        ("color", "Blue", "one of the options"),
        ("tags", "", "at least 1"),
        ("tags", "1,2,3", "at most 2"),
        ("tags", "1,a", "twice"),
    ],
)
def test_words_that_do_not_fit_are_told_apart(name: str, words: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        FIELDS[name].parse(words)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({}, "Your name: an answer is required."),
        ({"name": 5}, "Your name: this must be text."),
        ({"name": "Ada", "age": True}, "age: enter a number."),
        ({"name": "Ada", "age": "5"}, "age: enter a number."),
        ({"name": "Ada", "age": 1.5}, "age: enter a whole number."),
        ({"name": "Ada", "score": float("inf")}, "score: enter a number."),
        ({"name": "Ada", "sure": "yes"}, "sure: answer yes or no."),
        ({"name": "Ada", "color": ["r"]}, "color: choose one of the options."),
        ({"name": "Ada", "tags": "a"}, "tags: choose only from the options."),
        ({"name": "Ada", "tags": [["a"]]}, "tags: choose only from the options."),
        ({"name": "Ada", "csrf": "x"}, "There is no 'csrf' in this form."),
    ],
)
def test_an_answer_that_does_not_fit_the_form_is_refused_in_words(content: Any, told: str) -> None:
    assert forms.find_error(EVERY, content) == told


def test_an_answer_that_fits_is_fine() -> None:
    assert forms.find_error(EVERY, {"name": "Ada", "age": 36.0, "tags": ["c", "a"], "size": "s"}) is None
    assert forms.find_error({"type": "object", "properties": {}}, {}) is None
    assert FIELDS["sure"].default is False and FIELDS["name"].default is None


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": []},
        {"properties": {"x": 5, "y": True}},
        {"properties": {"x": {"type": ["string"], "minLength": "many", "enum": 7, "oneOf": [5, {"const": 5}]}}},
        {"properties": {"x": {"type": "array", "items": 5, "default": [5]}}, "required": 5},
        {"properties": {"x": {"type": "integer", "minimum": "0", "default": "five"}}},
        {"properties": {"x": {"enum": ["a", "b"], "enumNames": ["A"], "default": "c"}}},
    ],
)
def test_a_schema_that_is_none_is_no_fault(schema: dict[str, Any]) -> None:
    for field in forms.parse_fields(schema):
        assert field.default is None
        field.find_error("a")
    forms.find_error(schema, {"x": "a"})
