"""Parse an elicitation's form, read a person's input for its fields, and check an answer.

Source: MCP 2025-11-25 client/elicitation, "Requested Schema": a flat object of strings, numbers, booleans, and choices.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Literal

import msgspec

MAX_TEXT = 20_000  # characters of one text, if the form sets no limit: some pages
LARGEST = 1e15  # larger limits of a schema are ignored: no person can read them, and Python may fail to
EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.?[^@\s]*")
URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+")
YES, NO = ("y", "yes", "true", "1", "on"), ("n", "no", "false", "0", "off")

Kind = Literal["text", "number", "integer", "yes_no", "choice", "choices"]


class ElicitationField(msgspec.Struct, frozen=True):
    """One property of the form, as `declared`. `choices` maps each value to its title."""

    name: str
    kind: Kind
    title: str
    description: str
    required: bool
    choices: Mapping[str, str]
    schema: Mapping[str, Any]

    @property
    def default(self) -> Any:
        """Return the default value, or None."""
        value = self.schema.get("default")
        if isinstance(value, (int, float)) and not abs(value) < LARGEST:
            return None
        return value if value is not None and self.find_error(value) is None else None

    def describe_choice(self, value: str) -> str:
        """Return the description of a choice, or "": no revision has them, but our own tools tell them to our page."""
        items = self.schema.get("items") if self.kind == "choices" else self.schema
        titled = (items.get("oneOf") or items.get("anyOf")) if isinstance(items, Mapping) else None
        listed = titled if isinstance(titled, list) else []
        return next((str(each.get("description") or "") for each in listed if _is_choice(each, value)), "")

    def limit(self, name: str, without: float) -> float:
        """Return the schema's limit called `name`, such as "maxLength"; what is not a number counts as no limit."""
        given = self.schema.get(name)
        if isinstance(given, bool) or not isinstance(given, (int, float)):
            return without
        return given if abs(given) < LARGEST else without

    def find_error(self, value: Any) -> str | None:
        """Return what is wrong with this value, or None."""
        return CHECKS[self.kind](self, value)

    def parse(self, words: str) -> Any:
        """Return the value that a person typed. Several choices are separated by commas; a choice is its number in the
        list, its value or its title. Raises ValueError, which says what is wrong."""
        value = PARSERS[self.kind](self, words)
        wrong = self.find_error(value)
        if wrong is not None:
            raise ValueError(wrong)
        return value


def parse_fields(schema: Mapping[str, Any]) -> list[ElicitationField]:
    """Return the fields of a form, in order."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, Mapping):
        return []
    needed = required if isinstance(required, list) else []
    fields = [(name, declared) for name, declared in properties.items() if isinstance(declared, Mapping)]
    return [_parse_field(name, declared, name in needed) for name, declared in fields]


def find_error(schema: Mapping[str, Any], content: Mapping[str, Any]) -> str | None:
    """Return what is wrong with an accepted form, in words for the person, or None."""
    known = {field.name: field for field in parse_fields(schema)}
    for name in content:
        if name not in known:
            return f"There is no {name[:100]!r} in this form."
    for field in known.values():
        if field.name not in content:
            if field.required:
                return f"{field.title}: an answer is required."
            continue
        found = field.find_error(content[field.name])
        if found is not None:
            return f"{field.title}: {found}."
    return None


def _parse_field(name: str, declared: Mapping[str, Any], required: bool) -> ElicitationField:
    choices = _parse_choices(declared)
    kind: Kind = "choice" if choices else KINDS.get(str(declared.get("type")), "text")
    if kind == "choices":
        items = declared.get("items")
        choices = _parse_choices(items) if isinstance(items, Mapping) else {}
    title, description = (str(declared.get(key) or "") for key in ("title", "description"))
    return ElicitationField(name, kind, title or name, description, required, choices, declared)


def _is_choice(each: Any, value: str) -> bool:
    return isinstance(each, Mapping) and each.get("const") == value


def _parse_choices(declared: Mapping[str, Any]) -> dict[str, str]:
    """Return value → title, from any of the ways a schema lists choices."""
    titled = declared.get("oneOf") or declared.get("anyOf")
    if isinstance(titled, list):
        given = [each for each in titled if isinstance(each, Mapping) and isinstance(each.get("const"), str)]
        return {each["const"]: str(each.get("title") or each["const"]) for each in given}
    values, names = declared.get("enum"), declared.get("enumNames")
    if not isinstance(values, list):
        return {}
    named: Sequence[Any] = names if isinstance(names, list) and len(names) == len(values) else values
    return {value: str(name) for value, name in zip(values, named, strict=True) if isinstance(value, str)}


KINDS: Mapping[str, Kind] = {
    "string": "text",
    "number": "number",
    "integer": "integer",
    "boolean": "yes_no",
    "array": "choices",
}


# -- checking a value


def _wrong_text(field: ElicitationField, value: Any) -> str | None:
    if not isinstance(value, str):
        return "this must be text"
    least, most = field.limit("minLength", 0), min(field.limit("maxLength", MAX_TEXT), MAX_TEXT)
    if len(value) < least:
        return f"enter at least {least} characters" if value else "an answer is required"
    if len(value) > most:
        return f"this has {len(value):,} characters; at most {most:,} are allowed"
    told, fits = FORMATS.get(str(field.schema.get("format")), ("", None))
    return None if fits is None or fits(value) else f"this is not a valid {told}"


def _wrong_number(field: ElicitationField, value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "enter a number"
    if isinstance(value, float) and not math.isfinite(value):
        return "enter a number"
    if field.kind == "integer" and value != math.floor(value):
        return "enter a whole number"
    least, most = field.limit("minimum", -math.inf), field.limit("maximum", math.inf)
    if value < least:
        return f"enter at least {least}"
    return f"enter at most {most}" if value > most else None


def _wrong_yes_no(_: ElicitationField, value: Any) -> str | None:
    return None if isinstance(value, bool) else "answer yes or no"


def _wrong_choice(field: ElicitationField, value: Any) -> str | None:
    return None if isinstance(value, str) and value in field.choices else "choose one of the options"


def _wrong_choices(field: ElicitationField, value: Any) -> str | None:
    if not isinstance(value, list) or any(_wrong_choice(field, each) for each in value):
        return "choose only from the options"
    if len(set(value)) < len(value):
        return "an option is chosen twice"
    least, most = field.limit("minItems", 0), field.limit("maxItems", len(field.choices))
    if len(value) < least:
        return f"choose at least {least}"
    return f"choose at most {most}" if len(value) > most else None


def _is_date(value: str) -> bool:
    return _read_by(date.fromisoformat, value) and len(value) == len("2026-07-28")


def _is_time(value: str) -> bool:
    return _read_by(datetime.fromisoformat, value) and len(value) > len("2026-07-28")


def _read_by(read: Callable[[str], Any], value: str) -> bool:
    try:
        read(value)
    except ValueError:
        return False
    return True


FORMATS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "email": ("email address", EMAIL.fullmatch),
    "uri": ("URL", URI.fullmatch),
    "date": ("date, such as 2026-07-28", _is_date),
    "date-time": ("date and time, such as 2026-07-28T09:30", _is_time),
}
CHECKS: Mapping[Kind, Callable[[ElicitationField, Any], str | None]] = {
    "text": _wrong_text,
    "number": _wrong_number,
    "integer": _wrong_number,
    "yes_no": _wrong_yes_no,
    "choice": _wrong_choice,
    "choices": _wrong_choices,
}


# -- reading a person's input


def _read_text(_: ElicitationField, words: str) -> str:
    return words


def _read_number(field: ElicitationField, words: str) -> float | int:
    try:
        return int(words) if field.kind == "integer" or re.fullmatch(r"\s*[+-]?\d{1,18}\s*", words) else float(words)
    except ValueError:
        raise ValueError("enter a whole number" if field.kind == "integer" else "enter a number") from None


def _read_yes_no(_: ElicitationField, words: str) -> bool:
    word = words.strip().lower()
    if word not in (*YES, *NO):
        raise ValueError("answer y or n")
    return word in YES


def _read_choice(field: ElicitationField, words: str) -> str:
    word, values = words.strip(), list(field.choices)
    if word in field.choices:
        return word
    titles = [value for value, title in field.choices.items() if title == word]
    if len(titles) == 1:
        return titles[0]
    if word.isascii() and word.isdecimal() and 1 <= int(word[:9]) <= len(values):
        return values[int(word[:9]) - 1]
    raise ValueError("choose one of the options")


def _read_choices(field: ElicitationField, words: str) -> list[str]:
    return [_read_choice(field, word) for word in words.split(",") if word.strip()]


PARSERS: Mapping[Kind, Callable[[ElicitationField, str], Any]] = {
    "text": _read_text,
    "number": _read_number,
    "integer": _read_number,
    "yes_no": _read_yes_no,
    "choice": _read_choice,
    "choices": _read_choices,
}
