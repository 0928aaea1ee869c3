"""A question's schema as a form, and the form's answer."""

import pytest

from toolgate.server.calls import forms
from toolgate.server.calls.question import QuestionView
from toolgate.transports.web import elicitation_form
from toolgate.transports.web.home import _form_fields
from toolgate.transports.web.templates import PageTemplates

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name", "minLength": 2, "maxLength": 30},
        "mail": {"type": "string", "format": "email"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "rate": {"type": "number", "default": 0.5},
        "sure": {"type": "boolean", "default": True},
        "size": {"type": "string", "enum": ["s", "l"], "enumNames": ["Small", "Large"], "default": "l"},
        "tone": {"type": "string", "oneOf": [{"const": "a", "title": "Calm"}, {"const": "b", "title": "Loud"}]},
        "days": {"type": "array", "items": {"enum": ["mo", "tu"]}, "default": ["tu"]},
    },
    "required": ["name"],
}


def test_each_kind_of_field_is_shown_as_what_it_is() -> None:
    told = [
        (shown.name, shown.field.kind, shown.type, shown.value, shown.limits)
        for shown in elicitation_form.form_fields(SCHEMA)
    ]
    assert told == [
        ("f0", "text", "text", "", {"minlength": "2", "maxlength": "30"}),
        ("f1", "text", "email", "", {"maxlength": "20000"}),
        ("f2", "integer", "number", "", {"min": "0", "max": "150", "step": "1"}),
        ("f3", "number", "number", "0.5", {"step": "any"}),
        ("f4", "yes_no", "text", "on", {}),
        ("f5", "choice", "text", "l", {}),
        ("f6", "choice", "text", "", {}),
        ("f7", "choices", "text", "", {}),
    ]
    chosen = {
        shown.name: [(o.name, o.value, o.title, o.is_chosen) for o in shown.options]
        for shown in elicitation_form.form_fields(SCHEMA)
    }
    assert chosen["f5"] == [("f5.0", "0", "Small", False), ("f5.1", "1", "Large", True)]
    assert chosen["f7"] == [("f7.0", "0", "mo", False), ("f7.1", "1", "tu", True)]


def test_typed_values_become_an_answer_of_the_schemas_types() -> None:
    typed = {
        "f0": "Ada",
        "f1": "",
        "f2": "36",
        "f3": "1e3",
        "f5": "0",
        "f6": "",
        "f7.0": "on",
        "f7.1": "on",
        "f99": "x",
    }
    answer = elicitation_form.read_answer(SCHEMA, typed)
    assert answer == {"name": "Ada", "age": 36, "rate": 1000.0, "sure": False, "size": "s", "days": ["mo", "tu"]}
    assert forms.find_error(SCHEMA, answer) is None


def test_a_value_that_does_not_fit_stays_for_the_error_message() -> None:
    answer = elicitation_form.read_answer(SCHEMA, {"f0": "Ada", "f2": "old", "f4": "on"})
    assert answer == {"name": "Ada", "age": "old", "sure": True}
    assert forms.find_error(SCHEMA, answer) == "age: enter a number."
    assert elicitation_form.read_answer({}, {"f0": "x"}) == {}
    assert elicitation_form.read_answer({"properties": {"a": 1}}, {"f0": "x"}) == {}


def test_unreadable_numbers_in_a_schema_are_ignored() -> None:
    for number in (10**400, -(10**400), float("inf"), float("nan"), 1e15):
        declared = {"type": "number", "minimum": number, "maximum": number, "default": number}
        (field,) = elicitation_form.form_fields({"properties": {"n": declared}})
        assert (field.value, field.limits) == ("", {"step": "any"}), number
        text = {"type": "string", "maxLength": number, "default": number}
        (field,) = elicitation_form.form_fields({"properties": {"t": text}})
        assert (field.value, field.limits) == ("", {"maxlength": "20000"}), number


def test_a_question_that_cant_be_shown_can_be_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_schema: object) -> None:
        raise OverflowError

    waiting = QuestionView("q1", "t", "c", 0.0, 1.0, "how many?", {}, None)
    monkeypatch.setattr(elicitation_form, "form_fields", fails)
    it = {"csrf": "c", "names": {}, "questions": [(waiting, _form_fields(waiting))]}
    html = PageTemplates("", "t").render_part("home_parts", "questions", it)
    assert "how many?" in html and 'name="decline"' in html and 'name="accept"' not in html


def test_choices_that_need_not_be_made_are_left_out_where_nothing_is_ticked() -> None:
    schema = {"properties": {"days": {"type": "array", "items": {"enum": ["mo", "tu"]}, "minItems": 1}}}
    assert elicitation_form.read_answer(schema, {}) == {}
    assert elicitation_form.read_answer({**schema, "required": ["days"]}, {}) == {"days": []}


def test_own_words_are_the_last_option_of_their_choice_and_count_only_if_chosen() -> None:
    options = {"oneOf": [{"const": "a", "title": "Ay", "description": "first"}, {"const": "other", "title": "Bee"}]}
    several = {"type": "array", "items": {"anyOf": [{"const": "x", "title": "X", "description": "an x"}]}}
    words = {"type": "string", "maxLength": 9}
    schema = {"properties": {"q": options, "q_other": words, "r": several, "r_other": words, "s_other": words}}
    first, second, third = elicitation_form.form_fields(schema)
    assert [(o.value, o.title, o.description) for o in first.options] == [("0", "Ay", "first"), ("1", "Bee", "")]
    assert first.other is not None and (first.other.name, first.other.limits) == ("f1", {"maxlength": "9"})
    assert (first.other_value, second.other_value, third.field.name) == ("other", "f2.other", "s_other")
    typed = {"f1": "mine", "f3": "more"}
    for chosen, answer in (
        ({"f0": "1"}, {"q": "other"}),
        ({"f0": "other"}, {"q_other": "mine"}),
        ({"f2.0": "on"}, {"r": ["x"]}),
        ({"f2.0": "on", "f2.other": "on"}, {"r": ["x"], "r_other": "more"}),
    ):
        assert elicitation_form.read_answer(schema, {**typed, **chosen}) == answer
        assert elicitation_form.find_missing_words(schema, {**typed, **chosen}) is None
    wrong = elicitation_form.find_missing_words(schema, {"f0": "other", "f1": " "})
    assert wrong == "You chose Other: write your own answer next to it."
