"""Read values as a JSON Schema declares them: some clients send "3" for 3, and JSON text for a list or an object.

A text becomes another value only where the schema takes no text, and only if it spells exactly one value of a declared
type. Where several alternatives of the schema read it differently, it stays a text. A value that fits is never changed.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from toolgate.tools.api.schema.schema import UnusableSchemaError, compile_validator
from toolgate.tools.api.text.json_text import JsonError, decode_argument, parse_float

MAX_WORK = 10_000  # values that one reading visits, or has a validator visit: more take over 20 ms
CHARACTERS = 128  # of JSON in a text that take as long as a value
MAX_PARTS = 200  # alternatives of one schema whose validators are kept
MAX_DIGITS = 400  # characters of a number: a float has 309 digits at most
INTEGER = re.compile(r"(-?(?:0|[1-9][0-9]*))(?:\.0+)?")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
JSON_START = re.compile(r"[ \t\r\n]*[\[{]")
LITERALS: Mapping[str, tuple[str, Any]] = {
    "true": ("boolean", True),
    "false": ("boolean", False),
    "null": ("null", None),
}
VALUES = frozenset(("integer", "number", "boolean", "null", "array", "object"))  # all types but text
MEMBERS, ITEMS = frozenset(("properties", "additionalProperties")), frozenset(("prefixItems", "items"))
SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")  # of RFC 3986 section 2.3
JSON_NAME = re.compile(r"(?:.*[_.-])?json(?:[_.A-Z-].*)?|.*(?:Json|JSON).*")  # a parameter that holds JSON as text
JSON_WORD = re.compile(r"\bjson\b", re.IGNORECASE)
JSON_MEDIA = re.compile(r"application/(?:.+\+)?json\b")


class _TooMuchWorkError(Exception):
    """The value takes more work than a reading may do."""


class SchemaReader:
    """Read values by one schema."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema
        self._validators: dict[str, Any] = {}

    def read(self, value: Any, *, deep: bool) -> Any:
        """Return the value with each text read that can be; only the value's own members unless `deep`. A value that
        takes too much work is returned as it is."""
        try:
            return _Reading(self, deep=deep).read(value, self.schema, "")
        except (_TooMuchWorkError, RecursionError):
            return value

    def fits(self, value: Any, place: str) -> bool:
        """Return whether the value fits the part of the schema at `place`. A doubtful case counts as no."""
        validator = self._validators.get(place)
        if validator is None:
            if len(self._validators) >= MAX_PARTS:
                return False
            try:
                validator = self._validators[place] = compile_validator(self.schema, place)
            except UnusableSchemaError:
                return False
        try:
            return bool(validator.is_valid(value))
        except (ValueError, RecursionError):
            return False

    def fits_property(self, value: Any, name: str) -> bool:
        return self.fits(value, f"/properties/{_escape(name)}")

    def resolve(self, reference: str) -> Any:
        """Return the part of the schema that a `$ref` names, or None."""
        return _resolve(self.schema, reference)


class _Reading:
    """One reading of one value."""

    def __init__(self, reader: SchemaReader, *, deep: bool) -> None:
        self._reader = reader
        self._deep = deep
        self._work = MAX_WORK

    def read(self, value: Any, part: Any, place: str, *, is_json: bool = False) -> Any:
        """Return the value as `part` declares it. `place` is where that stands in the schema, as a URI fragment;
        `is_json`: a text there holds JSON."""
        self._spend(1)
        if not isinstance(part, dict):
            return value
        is_json = is_json or says_json(part)
        reference = part.get("$ref")
        if isinstance(reference, str):
            value = self.read(value, self._reader.resolve(reference), reference[1:], is_json=is_json)
        value = self._read_typed(value, part, is_json=is_json)
        for number, each in enumerate(_as_list(part.get("allOf"))):
            value = self.read(value, each, f"{place}/allOf/{number}", is_json=is_json)
        if self._deep or not place:
            value = self._read_parts(value, part, place)
        for keyword in ("anyOf", "oneOf"):
            value = self._choose(value, part.get(keyword), f"{place}/{keyword}", is_json=is_json)
        if "if" in part:
            branch = "then" if self._fits(value, f"{place}/if") else "else"
            value = self.read(value, part.get(branch), f"{place}/{branch}", is_json=is_json)
        return value

    def _read_typed(self, value: Any, part: Mapping[str, Any], *, is_json: bool) -> Any:
        """Return the value as one of the types that `part` names, if it can be read so."""
        declared = part.get("type")
        types = frozenset((declared,) if isinstance(declared, str) else _as_list(declared))
        if isinstance(value, str):
            if not types:
                return _read_option(value, part)
            return value if "string" in types else self._read_text(value, types)
        if isinstance(value, (dict, list)) and is_json and "string" in types and types <= {"string", "null"}:
            self._spend(_count(value, self._work))
            return _to_json(value)
        return value

    def _read_text(self, text: str, types: frozenset[str]) -> Any:
        if {"array", "object"} & types and JSON_START.match(text):
            self._spend(len(text) // CHARACTERS)
            try:
                parsed = decode_argument(text)
            except JsonError:
                return text
            return parsed if ("array" if isinstance(parsed, list) else "object") in types else text
        return read_scalar(text, types)

    def _read_parts(self, value: Any, part: Mapping[str, Any], place: str) -> Any:
        """Return an object with its members read, or an array with its items. A copy only if one has changed."""
        if isinstance(value, dict) and not MEMBERS.isdisjoint(part):
            read = {name: self._read_member(name, item, part, place) for name, item in value.items()}
            return read if any(read[name] is not item for name, item in value.items()) else value
        if isinstance(value, list) and not ITEMS.isdisjoint(part):
            items = [self._read_item(number, item, part, place) for number, item in enumerate(value)]
            return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
        return value

    def _read_member(self, name: str, value: Any, part: Mapping[str, Any], place: str) -> Any:
        properties, rest = part.get("properties"), part.get("additionalProperties")
        if isinstance(properties, dict) and name in properties:
            is_json = JSON_NAME.fullmatch(name) is not None
            return self.read(value, properties[name], f"{place}/properties/{_escape(name)}", is_json=is_json)
        if isinstance(rest, dict) and "patternProperties" not in part:
            return self.read(value, rest, f"{place}/additionalProperties")
        return value

    def _read_item(self, number: int, value: Any, part: Mapping[str, Any], place: str) -> Any:
        first = _as_list(part.get("prefixItems"))
        if number < len(first):
            return self.read(value, first[number], f"{place}/prefixItems/{number}")
        return self.read(value, part.get("items"), f"{place}/items")

    def _choose(self, value: Any, choices: Any, place: str, *, is_json: bool) -> Any:
        """Return the value as the alternatives read it, if all that can read it agree."""
        parts = _as_list(choices)
        if not parts or self._fits_one(value, parts, place):
            return value
        if isinstance(value, str) and JSON_START.match(value):
            parsed = self._read_text(value, VALUES)
            if parsed is not value and self._fits_one(parsed, parts, place):
                return parsed
        found: list[Any] = []
        for number, part in enumerate(parts):
            read = self.read(value, part, f"{place}/{number}", is_json=is_json)
            if read is not value and read not in found and self._fits(read, f"{place}/{number}"):
                found.append(read)
        return found[0] if len(found) == 1 else value

    def _fits_one(self, value: Any, parts: list[Any], place: str) -> bool:
        return any(self._fits(value, f"{place}/{number}") for number in range(len(parts)))

    def _fits(self, value: Any, place: str) -> bool:
        self._spend(_count(value, self._work))
        return self._reader.fits(value, place)

    def _spend(self, work: int) -> None:
        self._work -= work
        if self._work < 0:
            raise _TooMuchWorkError


def says_json(part: Mapping[str, Any]) -> bool:
    """Return whether a schema says that its text holds JSON, by media type, format or description."""
    media, description = part.get("contentMediaType"), part.get("description")
    return (
        (isinstance(media, str) and JSON_MEDIA.match(media) is not None)
        or part.get("format") in ("json", "json-string")
        or (isinstance(description, str) and JSON_WORD.search(description) is not None)
    )


def read_scalar(text: str, types: Iterable[str]) -> Any:
    """Return the number, boolean or null that a text spells, if it is of one of the types; else the text.

    Numbers are those of JSON, without spaces around them. An integer has no exponent; 1.0 is one.
    """
    if len(text) > MAX_DIGITS:
        return text
    literal = LITERALS.get(text)
    if literal is not None:
        return literal[1] if literal[0] in types else text
    whole = INTEGER.fullmatch(text)
    if whole is not None and ("integer" in types or ("number" in types and "." not in text)):
        return int(whole[1])
    if "number" in types and NUMBER.fullmatch(text):
        try:
            return parse_float(text)
        except ValueError:  # out of range
            return text
    return text


def _read_option(text: str, part: Mapping[str, Any]) -> Any:
    """Return the option of an untyped `enum` or `const` that a text spells, if the text is no option itself."""
    options = [part["const"]] if "const" in part else _as_list(part.get("enum"))
    if not options or text in options:
        return text
    spelled = read_scalar(text, VALUES)
    is_bool = isinstance(spelled, bool)
    matching = [each for each in options if each == spelled and isinstance(each, bool) is is_bool]
    return matching[0] if len(matching) == 1 else text


@lru_cache(1024)
def _escape(name: str) -> str:
    """Return a property's name as a step of a JSON pointer in a URI fragment (RFC 6901 section 6)."""
    step = name.replace("~", "~0").replace("/", "~1")
    return "".join(
        each if each in SAFE else "".join(f"%{byte:02X}" for byte in each.encode("utf-8", "replace")) for each in step
    )


def _resolve(schema: Any, reference: str) -> Any:
    if reference != "#" and not reference.startswith("#/"):
        return None
    from urllib.parse import unquote  # start-up: few schemas have references

    node = schema
    for step in reference.split("/")[1:]:
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(node, list):
            node = node[int(key)] if key.isdecimal() and int(key) < len(node) else None
        else:
            node = node.get(key) if isinstance(node, dict) else None
    return node


def _to_json(value: Any) -> str:
    import json  # start-up, and msgspec writes no integer of more than 64 bits

    return json.dumps(value, ensure_ascii=False)


def _count(value: Any, most: int) -> int:
    """Return how many values a value holds, or `most` and one more."""
    seen, waiting = 0, [value]
    while waiting and seen <= most:
        node = waiting.pop()
        seen += 1
        if isinstance(node, dict):
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
    return seen + len(waiting) if waiting else seen


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
