"""Turn a function's signature into a JSON Schema, and a JSON Schema into a compiled check with readable findings.

Dialect: JSON Schema 2020-12. Only local `$ref` are allowed: nothing is ever fetched (MCP basic, "$ref Resolution").
"""

import inspect
import re
import types
import typing
from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any

import msgspec

from toolgate.tools.api.text.cleaning import closest

MAX_SUBSCHEMAS = 2_000  # a larger schema is an attack on the validator
MAX_FINDINGS = 5  # a model corrects a few at a time
MAX_SHOWN = 120  # characters of an offending value that a finding quotes
MAX_TEXT = 256 * 1024  # characters of a value that a finding quotes from: the validator formats all of it first
MAX_VALUES = 30_000  # as `measure` counts, in one that a finding quotes from: to copy so many takes the validator 25 ms
CONTAINER = 20  # values that an object or an array counts as, by the time it takes
MAX_OPTIONS = 2_000  # characters of the allowed values in a finding
MAX_NAME = 1_024  # characters of a property's name

NEWS = "meanwhile"  # the property of structured content that holds notices
OPEN_KEYWORDS = {  # keywords that allow a further property
    *("type", "properties", "required", "title", "description", "default", "examples", "deprecated"),
    *("$defs", "definitions", "$schema", "$id", "$comment", "additionalProperties"),
}

UNKNOWN_KINDS = ("additionalProperties", "unevaluatedProperties")
COMBINED_KINDS = ("anyOf", "oneOf", "oneOfNotValid", "oneOfMultipleValid", "not", "falseSchema")
TYPE_NOUNS = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
}

WHOLE = "urn:toolgate:schema"  # names a schema while one of its parts is compiled
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 section 5.6.2

Check = Callable[[Any], str | None]


class UnusableSchemaError(ValueError):
    """The schema is not valid 2020-12, points outside itself, or is too large."""


def input_schema(function: Callable[..., Any], hidden: str | None) -> dict[str, Any]:
    """Return the `inputSchema` of a function: one property per parameter, required if it has no default.

    A string in `Annotated[int, "…"]` is the parameter's description. `hidden`, the context, is left out. Raises
    TypeError for a parameter that JSON can't name (positional-only, *args, **kwargs) or type.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    properties: dict[str, Any] = {}
    required: list[str] = []
    definitions: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name == hidden:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"parameter {name!r} of {function.__name__} can't be given by name")
        if name not in hints:
            raise TypeError(f"parameter {name!r} of {function.__name__} has no type")
        properties[name] = _property(hints[name], parameter, definitions)
        if parameter.default is parameter.empty:
            required.append(name)
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    schema["additionalProperties"] = False
    if definitions:
        schema["$defs"] = definitions
    return schema


def of_type(annotation: Any) -> dict[str, Any]:
    """Return the self-contained schema of one type."""
    (schema,), definitions = msgspec.json.schema_components((annotation,), ref_template="#/$defs/{name}")
    if list(schema) == ["$ref"]:
        reference: str = schema["$ref"]
        name = reference.removeprefix("#/$defs/")
        schema = definitions.pop(name)
        if msgspec.json.encode(reference) in msgspec.json.encode([schema, definitions]):  # the type holds itself
            definitions[name] = schema
    if definitions:
        schema = {**schema, "$defs": definitions}
    plain: dict[str, Any] = _drop_titles(schema)
    return plain


def has_schema(annotation: Any) -> bool:
    """Return whether JSON Schema can describe the type."""
    try:
        of_type(annotation)
    except TypeError:
        return False
    return True


def add_news(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an object's schema with a property for notices added, if it can have one."""
    properties = schema.get("properties", {})
    if schema.get("type") != "object" or NEWS in properties or not OPEN_KEYWORDS.issuperset(schema):
        return schema
    return {**schema, "properties": {**properties, NEWS: {"type": "array", "items": {"type": "string"}}}}


def allows_news(schema: dict[str, Any]) -> bool:
    """Return whether an object with notices added still fits the schema. A doubtful case counts as no."""
    properties = schema.get("properties", {})
    if schema.get("type") != "object" or not isinstance(properties, dict):
        return False
    if NEWS in properties:
        declared = properties[NEWS]
        return isinstance(declared, dict) and declared.get("type") == "array" and _are_strings(declared)
    return OPEN_KEYWORDS.issuperset(schema) and schema.get("additionalProperties", True) is True


def _are_strings(array: dict[str, Any]) -> bool:
    return array.get("items", True) in (True, {"type": "string"}) and array.keys().isdisjoint(("maxItems", "enum"))


def context_parameter(function: Callable[..., Any], context: type) -> str | None:
    """Return the name of the parameter annotated with `context`, if any."""
    for name, hint in typing.get_type_hints(function).items():
        if hint is context and name != "return":
            return name
    return None


def compile_validator(schema: dict[str, Any], place: str | None = None) -> Any:
    """Return the validator of a schema, or of the part of it at `place`, a URI fragment. Raises UnusableSchemaError."""
    import jsonschema_rs  # start-up: first needed by a call

    check_limits(schema)
    try:
        if place is None:
            return jsonschema_rs.Draft202012Validator(schema, retriever=_refuse)
        registry = jsonschema_rs.Registry([(WHOLE, schema)], retriever=_refuse)
        return jsonschema_rs.Draft202012Validator({"$ref": f"{WHOLE}#{place}"}, registry=registry)
    except Exception as error:
        raise UnusableSchemaError(f"not a usable JSON Schema: {error}") from error


def compile_check(schema: dict[str, Any], noun: str = "argument", *, validator: Any = None) -> Check:
    """Compile `schema` to a check that returns None, or a text naming each argument at fault and what was expected.
    `noun` names its properties in that text. `validator` is of the same schema. Raises UnusableSchemaError."""
    import jsonschema_rs  # start-up, as above

    validator = compile_validator(schema) if validator is None else validator
    is_valid = validator.is_valid

    def findings(value: Any) -> str | None:
        try:
            if is_valid(value):
                return None
            measured = measure(value, MAX_VALUES)
            if measured is None:
                return f"the {noun}s are not what is expected, and hold more than {MAX_VALUES} values"
            characters, longest = measured
            if longest > MAX_NAME:
                return f"a name among the {noun}s is longer than {MAX_NAME} characters"
            if characters > MAX_TEXT:
                masked = jsonschema_rs.Draft202012Validator(schema, retriever=_refuse, mask="the value")
                errors = masked.iter_errors(value)
            else:
                errors = validator.iter_errors(value)
            return _format_findings(list(islice(errors, MAX_FINDINGS)), schema, noun, characters > MAX_TEXT)
        except (ValueError, RecursionError):  # the validator's own limit
            return f"the {noun}s are nested too deeply"

    return findings


def measure(value: Any, most: int) -> tuple[int, int] | None:
    """Return the characters of all texts and names in a JSON value, and of its longest name. None if the value holds
    more than `most` values."""
    characters = longest = seen = 0
    waiting = [value]
    while waiting:
        node = waiting.pop()
        seen += CONTAINER + len(node) if isinstance(node, (dict, list)) else 1
        if seen > most:
            return None
        if isinstance(node, str):
            characters += len(node)
        elif isinstance(node, dict):
            names = [*map(len, node)]
            characters += sum(names)
            longest = max(longest, *names, 0)
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
    return characters, longest


def never_null(schema: dict[str, Any]) -> frozenset[str]:
    """Return the optional properties of an object's schema that do not accept null; a doubtful one is left out."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return frozenset()
    needed = required if isinstance(required, list) else []
    return frozenset(name for name, item in properties.items() if name not in needed and not _takes_null(item, schema))


def _takes_null(declared: Any, root: dict[str, Any]) -> bool:
    import jsonschema_rs  # start-up, as above

    # follow references: "properties" alone doesn't show a null
    alone: dict[str, Any] = {key: root[key] for key in ("$defs", "definitions", "properties") if key in root}
    try:
        validator = jsonschema_rs.Draft202012Validator({**alone, "allOf": [declared]}, retriever=_refuse)
        return validator.is_valid(None)
    except Exception:  # noqa: BLE001  # an unusual reference, or a validator's error
        return True


def check_limits(schema: dict[str, Any]) -> None:
    """Raise UnusableSchemaError for a `$ref` that leaves the schema, or for more than MAX_SUBSCHEMAS subschemas."""
    waiting: list[Any] = [schema]
    seen = 0
    while waiting:
        node = waiting.pop()
        seen += 1
        if seen > MAX_SUBSCHEMAS * 10:
            raise UnusableSchemaError(f"more than {MAX_SUBSCHEMAS} subschemas")
        if isinstance(node, dict):
            for key in ("$ref", "$dynamicRef"):
                target = node.get(key)
                if isinstance(target, str) and not target.startswith("#"):
                    raise UnusableSchemaError(f"only local $ref are followed, not {target!r}")
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def find_mirrored_headers(schema: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the `x-mcp-header` entries of an input schema: header name in lower case → path of the property. Raises
    UnusableSchemaError for a place or a header name that is not allowed (server/tools, "x-mcp-header")."""
    found: dict[str, tuple[str, ...]] = {}
    _collect_mirrored(schema, (), found)
    if _count_mirrored(schema) != len(found):
        raise UnusableSchemaError("x-mcp-header stands where no chain of properties leads, or twice under one name")
    return found


def _collect_mirrored(schema: dict[str, Any], path: tuple[str, ...], found: dict[str, tuple[str, ...]]) -> None:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return
    for name, part in properties.items():
        if not isinstance(part, dict):
            continue
        header = part.get("x-mcp-header")
        if header is not None:
            if not isinstance(header, str) or not TOKEN.fullmatch(header):
                raise UnusableSchemaError(f"x-mcp-header of {name!r} is no header name")
            if part.get("type") not in ("string", "integer", "boolean"):
                raise UnusableSchemaError(f"x-mcp-header of {name!r} needs type string, integer or boolean")
            found[header.lower()] = (*path, name)
        _collect_mirrored(part, (*path, name), found)


def _count_mirrored(node: Any, is_schema: bool = True) -> int:
    """Count `x-mcp-header` as a keyword anywhere in the schema; a property of that name does not count."""
    if isinstance(node, list):
        return sum(_count_mirrored(item) for item in node)
    if not isinstance(node, dict):
        return 0
    own = 1 if is_schema and "x-mcp-header" in node else 0
    names = ("properties", "$defs", "patternProperties")
    return own + sum(_count_mirrored(value, key not in names) for key, value in node.items())


def _property(hint: Any, parameter: inspect.Parameter, definitions: dict[str, Any]) -> dict[str, Any]:
    description = None
    if typing.get_origin(hint) is Annotated:
        base, *extras = typing.get_args(hint)
        words = [extra for extra in extras if isinstance(extra, str)]
        description = " ".join(words) or None
        metas = tuple(extra for extra in extras if isinstance(extra, msgspec.Meta))
        hint = Annotated[(base, *metas)] if metas else base  # built at run time
    if parameter.default is None:
        hint = _without_none(hint)  # `required` already says that it may be left out
    schema = of_type(hint)
    definitions.update(schema.pop("$defs", {}))
    if all(isinstance(value, str) for value in schema.get("enum", [None])):
        schema = {"type": "string", **schema}
    if "enum" in schema and typing.get_origin(hint) is typing.Literal:
        schema["enum"] = list(typing.get_args(hint))  # msgspec sorts them; their order tells a model something
    if description:
        schema["description"] = description
    if parameter.default is not parameter.empty and parameter.default is not None:
        schema["default"] = msgspec.to_builtins(parameter.default)
    return schema


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) is Annotated:
        base, *extras = typing.get_args(hint)
        return Annotated[(_without_none(base), *extras)]  # built at run time
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = tuple(part for part in typing.get_args(hint) if part is not types.NoneType)
        return typing.Union[rest]  # noqa: UP007  # a union made at run time has no other spelling
    return hint


def _drop_titles(schema: Any) -> Any:
    """Remove the class names that msgspec adds as titles: a model pays for every word of a schema."""
    if isinstance(schema, dict):
        return {
            key: _drop_titles(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str) and "properties" in schema)
        }
    if isinstance(schema, list):
        return [_drop_titles(item) for item in schema]
    return schema


def _format_findings(errors: list[Any], schema: dict[str, Any], noun: str, is_masked: bool) -> str:
    """Say which arguments are at fault and what was expected. Leave out one missing because mistyped."""
    names = list(schema.get("properties", {}))
    findings: list[str] = []
    suggested: set[str] = set()
    for error in sorted(errors, key=lambda error: str(error.kind.name) not in UNKNOWN_KINDS):
        path = ".".join(str(part) for part in error.instance_path)
        if error.kind.name in UNKNOWN_KINDS:
            for name in error.kind.unexpected[:MAX_FINDINGS]:
                if path:
                    findings.append(f"no {noun} {_quote(f'{path}.{name}')}")
                else:
                    suggested.update(filter(None, [closest(name, names)]))
                    findings.append(format_unknown(name, names, noun))
        elif error.kind.name == "required":
            name = error.kind.property
            if path or name not in suggested:
                findings.append(f"{noun} {_quote(f'{path}.{name}' if path else name)} is missing")
        else:
            what = _format_mismatch(error, is_masked)
            findings.append(f"{noun} {_quote(path)}{what}" if path else f"the {noun}s{what}")
    return "; ".join(findings[:MAX_FINDINGS])


def format_unknown(name: str, names: list[str], noun: str = "argument") -> str:
    """Say that there is no such argument, and which one may be meant."""
    near = closest(name, names)
    hint = f"; did you mean {_quote(near)}?" if near else f" ({noun}s: {', '.join(names) or 'none'})"
    return f"no {noun} {_quote(name)}{hint}"


def _format_mismatch(error: Any, is_masked: bool) -> str:
    """Say what a value must be, or why it does not fit. A masked value is too large to be quoted."""
    kind, name = error.kind, error.kind.name
    import json  # msgspec writes no integer of more than 64 bits

    value = "" if is_masked else _shorten(json.dumps(error.instance, ensure_ascii=False))
    if name == "type":
        wanted = " or ".join(TYPE_NOUNS.get(each, str(each)) for each in kind.types)
        return f" must be {wanted}{f', not {value}' if value else ''}"
    if name == "enum":
        options = ", ".join(_quote(each) if isinstance(each, str) else str(each) for each in kind.options)
        return f": {value or 'the value'} is not one of {options[:MAX_OPTIONS]}"
    if name in COMBINED_KINDS:
        return f" has a value that is not allowed{f': {value}' if value else ''}"
    return f": {_shorten(str(error.message))}"


def _quote(name: str) -> str:
    return f'"{name[:MAX_SHOWN]}"'


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_SHOWN * 2 else f"{text[:MAX_SHOWN]} … {text[-MAX_SHOWN:]}"


def _refuse(uri: str) -> Any:
    raise UnusableSchemaError(f"only local $ref are followed, not {uri!r}")
