"""Turn a question's schema into the fields of an HTML form, and the typed values into an answer."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from msgspec.structs import replace

from toolgate.server.calls import forms
from toolgate.server.calls.forms import MAX_TEXT, ElicitationField

INPUTS = {"email": "email", "uri": "url", "date": "date"}  # format → type of the input
LIMITS = {  # kind → attribute of the input → where the schema says it
    "text": {"minlength": "minLength", "maxlength": "maxLength"},
    "number": {"min": "minimum", "max": "maximum"},
    "integer": {"min": "minimum", "max": "maximum"},
}
STEPS = {"number": {"step": "any"}, "integer": {"step": "1"}}


OTHER = "other"  # the option of an answer in own words, which follows the numbered ones
OTHER_SUFFIX = "_other"  # a text field of this name after a choice is that choice's own words
MAX_RADIOS = 12  # options shown at once; more are a list


class FormOption(msgspec.Struct, frozen=True):
    """`name` is the field of this option if several may be chosen."""

    name: str
    value: str
    title: str
    description: str
    is_chosen: bool


class FormField(msgspec.Struct, frozen=True):
    """A field. `name` is never the schema's; `type` is that of an input element, `limits` are its attributes. `other`
    is the text field of a choice that takes own words, too."""

    name: str
    field: ElicitationField
    type: str
    value: str
    limits: Mapping[str, str]
    options: Sequence[FormOption]
    other: "FormField | None" = None

    @property
    def is_list(self) -> bool:
        return len(self.options) > MAX_RADIOS

    @property
    def other_value(self) -> str:
        """Return the value of the option for own words, or if several may be chosen the name of its field."""
        return _name(self.name, OTHER) if self.field.kind == "choices" else OTHER


def form_fields(schema: Mapping[str, Any]) -> list[FormField]:
    """Return the fields of a question, in its order. A field for own words is part of its choice."""
    named = list(_fields(schema))
    others = _find_others(named)
    made = {name: _to_form_field(name, field) for name, field in named}
    shown = [replace(each, other=made[others[name]]) if name in others else each for name, each in made.items()]
    return [each for each in shown if each.name not in others.values()]


def read_answer(schema: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer that a form holds. Empty values are left out, and so are own words if another option is chosen.
    A value that is not a number stays as typed, so that the check of the answer tells the person."""
    named = list(_fields(schema))
    choices = {other: choice for choice, other in _find_others(named).items()}
    is_used = {name: name not in choices or _chooses_other(choices[name], given) for name, _ in named}
    read = {field.name: _read(name, field, given) for name, field in named if is_used[name]}
    return {name: value for name, value in read.items() if value is not None}


def find_missing_words(schema: Mapping[str, Any], given: Mapping[str, str]) -> str | None:
    """Return a sentence for the person if the form chooses own words and has none, or None."""
    for choice, other in _find_others(list(_fields(schema))).items():
        if _chooses_other(choice, given) and not given.get(other, "").strip():
            return "You chose Other: write your own answer next to it."
    return None


def _fields(schema: Mapping[str, Any]) -> Iterator[tuple[str, ElicitationField]]:
    for n, field in enumerate(forms.parse_fields(schema)):
        yield f"f{n}", field


def _find_others(named: Sequence[tuple[str, ElicitationField]]) -> dict[str, str]:
    """Return the name of each choice that has a field for own words, with the name of that field."""
    pairs = pairwise(named)
    return {
        name: other
        for (name, field), (other, words) in pairs
        if field.choices and words.kind == "text" and words.name == f"{field.name}{OTHER_SUFFIX}"
    }


def _chooses_other(choice: str, given: Mapping[str, str]) -> bool:
    return given.get(choice) == OTHER or _name(choice, OTHER) in given


def _to_form_field(name: str, field: ElicitationField) -> FormField:
    default = field.default
    chosen = default if isinstance(default, list) else [default]
    options = [
        FormOption(_name(name, n), str(n), title, field.describe_choice(value), value in chosen)
        for n, (value, title) in enumerate(field.choices.items())
    ]
    kind = "number" if field.kind in STEPS else INPUTS.get(str(field.schema.get("format")), "text")
    value = "on" if default is True else "" if default is None or isinstance(default, (bool, list)) else str(default)
    limits = {
        at: field.limit(of, MAX_TEXT if at == "maxlength" else -1) for at, of in LIMITS.get(field.kind, {}).items()
    }
    given = {at: f"{limit:g}" for at, limit in limits.items() if limit != -1}
    return FormField(name, field, kind, value, {**given, **STEPS.get(field.kind, {})}, options)


def _read(name: str, field: ElicitationField, given: Mapping[str, str]) -> Any:
    if field.kind == "yes_no":
        return name in given
    if field.kind == "choices":
        chosen = [value for n, value in enumerate(field.choices) if _name(name, n) in given]
        return chosen if chosen or field.required else None
    typed = given.get(name, "").replace("\r\n", "\n")
    if field.kind == "choice":
        return None if typed == OTHER else dict(_number_choices(field)).get(typed, typed) or None
    if field.kind not in STEPS:
        return typed or None
    try:
        return field.parse(typed) if typed else None
    except ValueError:
        return typed


def _number_choices(field: ElicitationField) -> Iterator[tuple[str, str]]:
    """Yield the value that the form has for each choice, and the choice."""
    for n, value in enumerate(field.choices):
        yield str(n), value


def _name(name: str, part: int | str) -> str:
    return f"{name}.{part}"
