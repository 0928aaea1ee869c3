"""Turn a question's schema into the fields of an HTML form, and the typed values into an answer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolgate.server.calls import forms
from toolgate.server.calls.forms import MAX_TEXT, ElicitationField

INPUTS = {"email": "email", "uri": "url", "date": "date"}  # format → type of the input
LIMITS = {  # kind → attribute of the input → where the schema says it
    "text": {"minlength": "minLength", "maxlength": "maxLength"},
    "number": {"min": "minimum", "max": "maximum"},
    "integer": {"min": "minimum", "max": "maximum"},
}
STEPS = {"number": {"step": "any"}, "integer": {"step": "1"}}


@dataclass(frozen=True, slots=True)
class FormOption:
    """`name` is the field of this option if several may be chosen."""

    name: str
    value: str
    title: str
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class FormField:
    """A field. `name` is never the schema's; `type` is that of an input element, `limits` are its attributes."""

    name: str
    field: ElicitationField
    type: str
    value: str
    limits: Mapping[str, str]
    options: Sequence[FormOption]


def form_fields(schema: Mapping[str, Any]) -> list[FormField]:
    """Return the fields of a question, in its order."""
    return [_to_form_field(name, field) for name, field in _fields(schema)]


def read_answer(schema: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer that a form holds. Empty values are left out. A value that is not a number stays as typed, so
    that the check of the answer tells the person."""
    read = {field.name: _read(name, field, given) for name, field in _fields(schema)}
    return {name: value for name, value in read.items() if value is not None}


def _fields(schema: Mapping[str, Any]) -> Iterator[tuple[str, ElicitationField]]:
    for n, field in enumerate(forms.parse_fields(schema)):
        yield f"f{n}", field


def _to_form_field(name: str, field: ElicitationField) -> FormField:
    default = field.default
    chosen = default if isinstance(default, list) else [default]
    choices = enumerate(field.choices.items())
    options = [FormOption(_name(name, n), value, title, value in chosen) for n, (value, title) in choices]
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
    if field.kind not in STEPS:
        return typed or None
    try:
        return field.parse(typed) if typed else None
    except ValueError:
        return typed


def _name(name: str, n: int) -> str:
    return f"{name}.{n}"
